"""The noise scale of a run in the report: its line, its interval, the batch; and pages without it as before."""

from __future__ import annotations

import json
from pathlib import Path

from report.samples import write_run
from rueda.report.collect import collect
from rueda.report.page import render

SHARED = {
    "kind": "noise", "epoch": 1, "seconds": 1.0, "examples": 64, "variance": 1.0, "square": 0.01, "steps": 3,
}  # fmt: skip


def write_noise(folder: Path, rows: list[dict[str, object]]) -> Path:
    write_run(folder)
    with open(folder / "metrics.jsonl", "a") as stream:
        stream.writelines(json.dumps({**SHARED, **row}) + "\n" for row in rows)
    return folder


def test_the_figure_shows_value_interval_and_batch(tmp_path: Path) -> None:
    measured = ((1, None, 0.0, None, 64), (2, 100.0, 50.0, 400.0, 64), (3, 120.0, 80.0, 200.0, 128))
    names = ("step", "value", "low", "high", "global_batch")
    whole = [{**dict(zip(names, row, strict=True)), "group": None} for row in measured]
    parts = [{**row, "group": "0", "value": 7.0} for row in whole]
    folder = write_noise(tmp_path / "run", [*whole, *parts])
    (section,) = collect([folder])
    (plot,) = [plot for plot in section.plots if plot.name == "noise-scale"]
    band, middle, batch = plot.traces
    assert middle["x"] == [1, 2, 3] and middle["y"] == [None, 100.0, 120.0]
    assert batch["y"] == [64, 64, 128]
    top, bottom = band["y"][0], band["y"][-1]  # no upper end, and a lower end of 0 on a logarithmic axis
    assert band["y"][1:-1] == [400.0, 200.0, 80.0, 50.0] and top > 400 and 0 < bottom < 50
    page = render([section])
    assert "Gradient noise scale" in page and 'data-figure="noise-scale"' in page
    # What the other figures show is not moved by rows of another kind.
    write_run(folder)
    (plain,) = collect([folder])
    assert plain.lines[0].progress == section.lines[0].progress
    assert plain.lines[0].rate == section.lines[0].rate and not plain.plots


def test_a_run_that_has_only_measurements_yet(tmp_path: Path) -> None:
    folder = write_noise(tmp_path / "run", [])
    row = {**SHARED, "step": 1, "value": None, "low": 0.0, "high": None, "global_batch": 64, "group": None}
    (folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    (section,) = collect([folder])
    assert not section.plots  # nothing is known yet
    assert section.entries[0].test is None
    render([section])
