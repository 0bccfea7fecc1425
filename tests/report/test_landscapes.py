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
from rueda.records.landscape import Landscape, Member, Sheet
from rueda.report.collect import collect
from rueda.report.landscapes import to_section
from rueda.report.model import Plot
from rueda.report.page import render


def plots(*members: Member) -> dict[str, Plot]:
    return {plot.name: plot for plot in to_section(Landscape(task="t", members=members)).plots}


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
    assert [view.label for view in relief.views] == ["training loss", "test loss", "training error", "test error"]
    for view in relief.views:  # each shows one surface a member
        assert sum(view.visible) == num_members
    for plot in (relief, found["landscape-contours"]):  # on a phone one above the other, without overlap
        heights = sorted(
            value["y"] if isinstance(value, dict) else value for path, value in plot.narrow.items()
            if path.startswith(("scene", "yaxis"))
        )  # fmt: skip
        assert len(heights) == num_members and heights[0][0] == 0
        assert all(low[1] < high[0] for low, high in itertools.pairwise(heights))


def test_the_path_lies_on_its_surface() -> None:
    found = plots(member("a"))
    (above,) = (trace for trace in found["path-surface"].traces if trace["type"] == "scatter3d")
    heights = [math.log10(1.05 * loss) for loss in (2.1, 0.1, 0.1)]  # a little above the nearest points of the grid
    assert above["z"] == pytest.approx(heights, abs=1e-4)
    marks = found["path-contours"].traces[-1]
    assert marks["x"] == [1.0, 0.4, 0.0] and marks["text"][1] == "after 5 updates¶training loss 2"


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
