"""A plan on the report's page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plan.profiles import noise, profile, step
from rueda.plan import load_cluster, make_plan
from rueda.report.collect import collect
from rueda.report.model import Section
from rueda.report.page import render
from rueda.report.plot import Plot

STEPS = [step(16, 0.020), step(64, 0.064), step(256, 0.220)]


def section(
    folder: Path, workers: list[int], cluster: str = "dgx-h100", batch: int | None = None, **more: Any
) -> Section:
    plan = make_plan(profile(STEPS, **more), load_cluster(cluster), workers=workers, batch=batch)
    plan.save(folder / "plan.json")
    (found,) = collect([folder])
    return found


def test_the_star_stands_on_the_recommended_row_and_the_shade_past_the_critical_batch(tmp_path: Path) -> None:
    found = section(tmp_path, [1, 2, 4, 8, 64], batch=64, noise=(noise(300),))
    efficiency, time, batches = found.plots
    for plot in (efficiency, time):
        star = plot.traces[-1]
        row = next(cells for cells in found.tables[0].rows if cells[-1] == "recommended")
        assert star["marker"]["symbol"] == "star" and star["x"][0] == row[0][0]
        (shade,) = plot.layout["shapes"]
        past = [cells[0][0] for cells in found.tables[0].rows if (cells[3][0] or 0) > 300]
        before = [cells[0][0] for cells in found.tables[0].rows if (cells[3][0] or 0) <= 300]
        assert max(before) < shade["x0"] < min(past) and shade["x1"] > max(past)
    assert batches.layout["shapes"][0]["x0"] == pytest.approx(300)
    page = render([found])
    assert "Weak and strong scaling" in page and "cost (USD)" in page and "does not know" in page


def test_without_a_noise_scale_nothing_is_shaded(tmp_path: Path) -> None:
    found = section(tmp_path, [1, 8])
    assert all("shapes" not in plot.layout for plot in found.plots)
    assert not any("statistical efficiency" in head for head in found.tables[0].heads)
    assert "No noise scale was measured" in render([found])


def test_one_recommended_worker_is_not_called_workers(tmp_path: Path) -> None:
    (text,) = section(tmp_path, [1]).plots[0].traces[-1]["text"]
    assert text.startswith("recommended: 1 worker, ")


@pytest.mark.parametrize("cluster", ["ethernet-25", "pcie4-4"])
def test_without_a_price_there_is_no_cost(tmp_path: Path, cluster: str) -> None:
    found = section(tmp_path, [1, 4], cluster)
    assert not any("cost" in head for head in found.tables[0].heads)


def test_names_are_shown_and_never_run(tmp_path: Path) -> None:
    page = render([section(tmp_path, [1], task="<script>alert(1)</script>")])
    assert "&lt;script&gt;alert(1)" in page and "<script>alert(1)" not in page


def test_the_number_beyond_which_another_worker_is_wasted_is_marked(tmp_path: Path) -> None:
    """Where the time falls no further, and nowhere if it still falls at the last number of workers."""

    def time_plot(phi: float, seconds_of_example: float) -> Plot:
        steps = [step(size, 0.01 + seconds_of_example * size) for size in (1, 64, 1024)]
        measured = profile(steps, noise=(noise(phi),))
        make_plan(measured, load_cluster("dgx-h100"), workers=[1, 8], epochs=50).save(tmp_path / "plan.json")
        (found,) = collect([tmp_path])
        return found.plots[1]

    time = time_plot(1000, 0.0)
    (mark,) = [trace for trace in time.traces if trace["name"] == "beyond it, wasted"]
    hours = next(trace for trace in time.traces if trace["name"] == "best batch")
    least = min(hours["y"])
    enough = next(x for x, y in zip(hours["x"], hours["y"], strict=True) if y <= 1.05 * least)
    assert mark["x"] == [enough] and mark["y"] == [hours["y"][hours["x"].index(enough)]]
    assert f"Beyond {enough} workers another one is wasted" in time.note
    assert set(hours["x"]) <= set(time.layout["xaxis"]["tickvals"])
    assert not any(trace["name"] == "beyond it, wasted" for trace in time_plot(1e6, 1.0).traces)
