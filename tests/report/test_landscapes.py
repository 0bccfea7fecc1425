"""Landscapes on the page: one or many, with gaps, without errors, with names that would like to be tags."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from report.samples import landscape_member as member
from rueda.records.landscape import Landscape, ModelLandscape, Sheet
from rueda.report.collect import collect
from rueda.report.figures.parts import round_ticks
from rueda.report.landscapes import to_section
from rueda.report.page import render
from rueda.report.plot import Plot, View


def plots(*members: ModelLandscape) -> dict[str, Plot]:
    return {plot.name: plot for plot in to_section(Landscape(task="t", members=members)).plots}


def views(plot: Plot) -> list[View]:
    (switch,) = plot.switches
    return list(switch.views.values())


def test_every_picture_is_there(tmp_path: Path) -> None:
    Landscape(task="t", members=(member("a"),), command="rueda examine a").save(tmp_path / "landscape.json")
    (section,) = collect([tmp_path])
    assert [plot.name for plot in section.plots] == [
        "landscape-surface", "landscape-contours", "path-surface", "path-contours", "lines-loss", "lines-error",
        "interpolation",
    ]  # fmt: skip
    page = render([section])
    assert "a: training loss 0.1 at the model" in page and "holds 95.0" in page and "rueda examine a" in page


@pytest.mark.parametrize("num_members", [2, 4])
def test_members_stand_side_by_side_on_one_scale(num_members: int) -> None:
    found = plots(*(member(f"run {index}", 10.0**index) for index in range(num_members)))
    relief = found["landscape-surface"]
    shown = [trace for trace in relief.traces if trace["visible"]]
    assert [trace["name"] for trace in shown] == [f"run {index}" for index in range(num_members)]
    assert len({trace["scene"] for trace in shown}) == num_members
    assert len({(trace["cmin"], trace["cmax"]) for trace in shown}) == 1
    assert shown[0]["cmin"] == pytest.approx(-1.0)
    assert "0.1" in relief.layout["scene"]["zaxis"]["ticktext"]
    places = [tuple(relief.layout[trace["scene"]]["domain"]["x"]) for trace in shown]
    assert len(set(places)) == 2  # side by side, four of them two by two
    assert [view.label for view in views(relief)] == ["training loss", "test loss", "training error", "test error"]
    for view in views(relief):  # each shows one surface a member
        assert sum(trace["visible"] for trace in view.traces) == num_members
    for plot in (relief, found["landscape-contours"]):  # on a phone one above the other, without overlap
        heights = sorted(
            value["y"] if isinstance(value, dict) else value for path, value in plot.narrow.items()
            if path.startswith(("scene", "yaxis"))
        )  # fmt: skip
        assert len(heights) == num_members and heights[0][0] >= 0 and heights[-1][1] < 1
        assert len({round(top - bottom, 9) for bottom, top in heights}) == 1
        assert all(low[1] < high[0] for low, high in itertools.pairwise(heights))


@pytest.mark.parametrize("num_members", [1, 2, 3, 5, 6])
def test_panels_are_of_one_size(num_members: int) -> None:
    found = plots(*(member(f"run {index}") for index in range(num_members)))
    contours, relief = found["landscape-contours"], found["landscape-surface"]
    flat = [
        (contours.layout[f"xaxis{k}"]["domain"], contours.layout[f"yaxis{k}"]["domain"]) for k in _numbers(num_members)
    ]
    deep = [tuple(relief.layout[f"scene{k}"]["domain"].values()) for k in _numbers(num_members)]
    for panels in (flat, deep):
        for ends in zip(*panels, strict=True):
            assert len({round(high - low, 9) for low, high in ends}) == 1
            assert all(0 <= low < high <= 1 + 1e-9 for low, high in ends)
        assert len({str(panel) for panel in panels}) == num_members


def _numbers(total: int) -> list[str]:
    return ["", *(str(index + 1) for index in range(1, total))]


def test_contours_can_be_read_by_one_colour_bar() -> None:
    contours = plots(member("a"), member("b", 10.0))["landscape-contours"]
    assert {trace["coloraxis"] for trace in contours.traces if trace["type"] == "contour"} == {"coloraxis"}
    loss, error = views(contours)[0].changes, views(contours)[2].changes
    assert loss["coloraxis.colorbar.title.text"] == "loss" and error["coloraxis.colorbar.title.text"] == "error"
    assert loss["coloraxis.cmin"] == pytest.approx(-1) and loss["coloraxis.cmax"] == pytest.approx(
        math.log10(21), abs=1e-4
    )
    bar = dict(zip(loss["coloraxis.colorbar.ticktext"], loss["coloraxis.colorbar.tickvals"], strict=True))
    assert bar["10"] == 1 and bar["0.1"] == -1  # a colour stands for the logarithm, and the bar says the loss


@pytest.mark.parametrize(("low", "high"), [(1.9, 3.1), (0.6912, 0.6931), (0.21, 0.49), (0.05, 20), (1e-4, 9e3)])
def test_a_scale_has_at_least_three_ticks(low: float, high: float) -> None:
    ticks = round_ticks(low, high)
    assert 3 <= len(ticks) <= 12 and ticks == sorted(set(ticks)) and low <= ticks[0] and ticks[-1] <= high


def test_workers_and_rehearsals_are_told() -> None:
    trained = replace(member("lamb-seed0"), workers=8, rehearsed=True)
    section = to_section(
        Landscape(task="t", members=(replace(member("one-worker"), workers=1, rehearsed=False), trained))
    )
    assert section.tables[0].rows[-1][0] == "lamb-seed0, 8 workers, rehearsed"
    texts = [note["text"] for note in section.plots[0].layout["annotations"]]
    assert texts == ["one-worker", "lamb-seed0", "8 workers, rehearsed"]
    assert "lamb-seed0, 8 workers, rehearsed: training loss 0.1" in section.told[1]


def test_two_interpolations_have_places_of_their_own() -> None:
    names = [plot.name for plot in to_section(Landscape(task="t", members=(member("a"), member("c")))).plots]
    assert len(set(names)) == len(names) and {"interpolation", "interpolation-2"} <= set(names)


def test_the_path_lies_on_its_surface() -> None:
    found = plots(member("a"))
    (above,) = (trace for trace in found["path-surface"].traces if trace["type"] == "scatter3d")
    heights = [math.log10(1.05 * loss) for loss in (2.1, 0.1, 0.1)]  # a little above the nearest points of the grid
    assert above["z"] == pytest.approx(heights, abs=1e-4)
    marks = found["path-contours"].traces[-1]
    assert marks["x"] == [1.0, 0.4, 0.0] and marks["text"][1] == "after 5 updates<br>training loss 2"


def test_gaps_and_tasks_without_a_metric() -> None:
    whole = member("a", error=False)
    assert whole.surface is not None
    rows = ((math.nan, 1.0, 2.0), (math.inf, 0.1, 0.2))
    holed = replace(whole, surface=replace(whole.surface, sheets=(Sheet(split="train", loss=rows),)))
    found = plots(holed)
    assert "lines-error" not in found
    trace = found["landscape-surface"].traces[0]
    assert trace["text"] == [[None, 1.0, 2.0], [None, 0.1, 0.2]]
    assert trace["z"] == [[None, 0.0, pytest.approx(math.log10(2), abs=1e-4)], [None, -1.0, -0.69897]]
    nothing = replace(
        whole, surface=replace(whole.surface, sheets=(Sheet(split="train", loss=((math.nan,) * 3,) * 2),))
    )
    page = render([to_section(Landscape(task="t", members=(holed, nothing)))])
    assert "NaN" not in _data(page) and "Infinity" not in _data(page)
    json.loads(_data(page))


def _data(page: str) -> str:
    return page.split('<script type="application/json" id="data">')[1].split("</script>")[0]


@pytest.mark.parametrize("name", ["<img src=x onerror=alert(1)>", "</script><script>alert(1)</script>", "@blue"])
def test_names_stay_names(name: str) -> None:
    page = render([to_section(Landscape(task=name, members=(member(name), member("b"))))])
    assert "<img src=x" not in page and "<script>alert" not in page
    data: Any = json.loads(_data(page))
    assert data
