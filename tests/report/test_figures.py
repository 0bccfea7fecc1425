"""The figures of runs and studies as Python describes them: numbers, scales, names; a browser is not needed."""

from __future__ import annotations

import json
import math
import statistics
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from report.samples import TABLE, write_others, write_run, write_study
from rueda.optim.rates import build_schedule
from rueda.records.batch_curve import BatchCurve
from rueda.records.recipe.recipe import Recipe
from rueda.records.run import Row
from rueda.report.collect import collect
from rueda.report.escape import Label, to_script
from rueda.report.figures.arrangement import training_figures
from rueda.report.figures.techniques import techniques
from rueda.report.model import Entry, Section
from rueda.report.pack import pack
from rueda.report.plot import Plot, Span, Switch, log_start


def figures(*paths: Path) -> dict[str, Plot]:
    (section,) = collect(paths)
    return {plot.name: plot for plot in (*chain(*training_figures(section)), *section.plots)}


def switch(plot: Plot, name: str) -> Switch:
    return next(one for one in plot.switches if one.name == name)


def test_progress_has_a_view_for_each_axis_and_measure(tmp_path: Path) -> None:
    plot = figures(write_study(tmp_path, seeds=2))["progress"]
    assert len(plot.traces) == 2 * len(TABLE)
    axis, measure = switch(plot, "axis"), switch(plot, "measure")
    assert list(axis.views) == ["epochs", "updates", "seconds"]
    assert list(measure.views) == ["test_accuracy", "test_loss", "train_accuracy", "train_loss"]
    assert [axis.views[name].traces[0]["x"][-1] for name in ("epochs", "updates")] == [12, 1152]
    accuracy = measure.views["test_accuracy"]
    assert [change["showlegend"] for change in accuracy.traces] == [True, False] * len(TABLE)  # a name a row
    assert (
        accuracy.changes["yaxis"]["fit"].most == 1.005
        and measure.views["test_loss"].changes["yaxis"]["fit"].most is None
    )
    assert [label["text"] for label in accuracy.changes["annotations"]] == ["one-worker", "naive", "lamb"]
    last = [change["y"][-1] for change in accuracy.traces[:2]]
    assert accuracy.changes["annotations"][0]["y"] == pytest.approx(sum(last) / 2)
    assert list(plot.images) == [f"test-accuracy-{name}" for name in ("epochs", "updates", "seconds")]


def test_a_run_without_a_measure_is_not_drawn_in_its_view(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / name, steps=False)
    metrics = tmp_path / "b" / "metrics.jsonl"
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    metrics.write_text("".join(json.dumps({**row, "test_loss": None}) + "\n" for row in rows))
    views = switch(figures(tmp_path)["progress"], "measure").views
    assert views["test_loss"].traces[1] == {"visible": False}
    assert "visible" not in views["test_accuracy"].traces[1]


def schedule_run(folder: Path, recipe: Recipe, rates: list[float]) -> Plot:
    """Write a run of 100 updates an epoch with these rates at the ends of its epochs, and draw its learning rate."""
    shared: dict[str, Any] = {"train_loss": 1.0, "train_accuracy": 0.5, "images_per_second": 1.0}
    write_run(folder, recipe=recipe)
    batch = recipe.global_batch
    (folder / "metrics.jsonl").write_text(
        "".join(
            Row(
                kind="epoch", epoch=epoch, step=100 * epoch, examples=100 * batch * epoch, seconds=10.0 * epoch,
                rate=rate, global_batch=batch, **shared,
            ).to_json() + "\n"
            for epoch, rate in enumerate(rates, 1)
        )
    )  # fmt: skip
    return figures(folder)["rate"]


def test_a_warmup_and_a_milestone_between_two_epochs_are_drawn_where_they_are(tmp_path: Path) -> None:
    recipe = Recipe(
        workers=8, batch=64, rate=0.05, scaling="linear", warmup_epochs=0.5, epochs=4, schedule="step",
        milestones=(3.2,), decay=0.1, base_batch=64,
    )  # fmt: skip
    plot = schedule_run(tmp_path / "run", recipe, [0.4, 0.4, 0.4, 0.04])
    (view,) = switch(plot, "axis").views["epochs"].traces
    rates, schedule = plot.traces[0]["y"], build_schedule(recipe, 100)
    assert sum(0 < epoch < 0.5 for epoch in view["x"]) >= 50  # many points in a warm-up of half an epoch
    assert [epoch for epoch, rate in zip(view["x"], rates, strict=True) if rate == 0.04] == [3.2, 4.0]
    for epoch, rate in zip(view["x"], rates, strict=True):
        before, after = schedule(100 * epoch - 1e-3), schedule(100 * epoch)
        assert rate in (pytest.approx(before, rel=1e-4), pytest.approx(after, rel=1e-4))
    (updates,) = switch(plot, "axis").views["updates"].traces
    assert updates["x"][-1] == 400 and 320 in updates["x"]
    assert "by the recipe's schedule" in plot.note


@pytest.mark.parametrize("recipe", [Recipe(batch=64, epochs=3), Recipe(batch=64, epochs=3, adascale=True, workers=2)])
def test_rates_that_no_schedule_gives_are_drawn_as_recorded(tmp_path: Path, recipe: Recipe) -> None:
    plot = schedule_run(tmp_path / "run", recipe, [0.07, 0.08, 0.08])
    (view,) = switch(plot, "axis").views["epochs"].traces
    assert (view["x"], plot.traces[0]["y"]) == ([1e-9, 1, 1, 3], [0.07, 0.07, 0.08, 0.08])
    assert "as recorded at the end of each epoch" in plot.note


def test_one_row_of_many_epochs_does_not_change_the_axis_of_the_others(tmp_path: Path) -> None:
    plot = figures(write_study(tmp_path, seeds=1))["progress"]
    spans = [change["spans.x"] for change in switch(plot, "axis").views["epochs"].traces]
    assert [span.high for span in spans if span.is_outlier] == [96]
    assert {span.high for span in spans if not span.is_outlier} == {4, 12}  # one diverges in its fourth epoch
    assert all(span.large is None for span in spans)  # epochs are never on a logarithmic axis
    assert "longer-training (to epoch 96)" in plot.note


def test_rehearsed_throughput_is_not_charted(tmp_path: Path) -> None:
    assert "speed" not in figures(write_study(tmp_path / "study", seeds=1))  # one real row: nothing to compare
    for name in ("a", "b", "c"):
        write_run(tmp_path / "runs" / name, rehearsed=name == "c", epochs=ord(name) - 90, steps=False)
    speed = figures(tmp_path / "runs")["speed"]
    assert speed.traces[0]["customdata"] == ["b", "a"] and "Rehearsed rows are left out." in speed.note


def test_seeds_of_one_recipe_are_one_row(tmp_path: Path) -> None:
    finals = {"lamb-seed0": 0.8, "lamb-seed1": 0.9}
    for seed, (name, final) in enumerate(finals.items()):
        write_run(tmp_path / name, seed=seed, final=final, steps=False)
    write_run(tmp_path / "other", workers=4, seed=0, steps=False)
    write_run(tmp_path / "same-seed-again", seed=0, steps=False)
    (section,) = collect([tmp_path])
    assert [(entry.name, entry.num_seeds) for entry in section.entries] == [
        ("lamb", 2), ("other", 1), ("same-seed-again", 1),
    ]  # fmt: skip
    ends = [line.progress["test_accuracy"][-1] or 0.0 for line in section.lines if line.entry == 0]
    assert section.entries[0].test == pytest.approx(statistics.fmean(ends))
    assert section.entries[0].test_spread == pytest.approx(statistics.stdev(ends))
    assert [line.entry for line in section.lines] == [0, 0, 1, 2]


def test_where_a_logarithmic_axis_begins() -> None:
    spans = [Span(low=0, high=9, starts=(1.0, 0.5)), Span(low=0, high=9, starts=(0.1, 0.3)), Span(low=0, high=9)]
    assert log_start(spans) == 0.3  # the highest of the lowest: 0.1 and 0.3
    assert log_start(spans[2:]) is None


@pytest.mark.parametrize(
    ("final", "verdict", "kind"), [(0.9, "kept", "kept"), (0.5, "lost", "lost"), (None, "diverged", "diverged")]
)
def test_techniques_are_marked_by_their_verdicts(final: float | None, verdict: str, kind: str) -> None:
    base = Entry(name="one-worker", workers=1, test=0.87, role="base")
    other = Entry(name="a < b", test=final, verdict=verdict, diverged=final is None, rehearsed=True)
    plot = techniques(Section(title="", task="", entries=[base, other], is_study=True))
    assert [trace["name"] for trace in plot.traces] == ["one worker", kind]
    assert plot.traces[1]["customdata"][0].startswith("<b>a &lt; b</b><br>")
    assert "a &lt; b <i>r</i>" in plot.layout["yaxis"]["ticktext"]
    assert len(plot.layout["shapes"]) == (1 if final is None else 2)  # the dotted line, and a bar to it


@pytest.mark.parametrize(("accuracy", "spread"), [(0.6, 0.3), (0.05, 0.2), (0.99, 0.004)])
def test_the_axis_of_techniques_holds_the_spreads(accuracy: float, spread: float) -> None:
    base = Entry(name="one-worker", workers=1, test=0.87, role="base")
    other = Entry(name="lamb", test=accuracy, test_spread=spread, verdict="lost")
    low, high = techniques(Section(title="", task="", entries=[base, other])).layout["xaxis"]["range"]
    assert low < accuracy - spread and high > max(0.87, accuracy + spread)


def test_regimes_are_those_of_the_curve(tmp_path: Path) -> None:
    plot = figures(write_others(tmp_path))["steps"]
    saved = json.loads((tmp_path / "steps.json").read_text())["fit"]
    curve = BatchCurve(**{**saved, "interval": tuple(saved["interval"])})
    assert [band["x1"] for band in plot.layout["shapes"][:2]] == list(curve.boundaries)
    assert [note["text"] for note in plot.layout["annotations"][:3]] == [
        "perfect<br>scaling", "diminishing<br>returns", "maximal<br>parallelism",
    ]  # fmt: skip
    fit = plot.traces[0]
    assert fit["y"][40] == pytest.approx(curve.updates(fit["x"][40]), rel=1e-4)
    assert "slope 0.9 or more" in plot.note and "0.1 or less" in plot.note


def test_the_surface_is_the_loss_and_paths_lie_on_it(tmp_path: Path) -> None:
    found = figures(write_others(tmp_path))
    ground, path = found["surface"].traces[0], found["surface"].traces[-1]
    data = json.loads((tmp_path / "gd.json").read_text())["data"]
    for column, row in ((0, 0), (30, 30), (60, 12)):
        w, b = column / 3, -18 + 2 * row / 3
        loss = sum((w * x + b - y) ** 2 for x, y in zip(data["x"], data["y"], strict=True)) / len(data["x"])
        assert ground["z"][row][column] == pytest.approx(math.log10(loss), abs=1e-4)
    assert path["name"] == "batch 1" and path["x"][0] == path["y"][0] == 0.0
    assert path["z"][0] == pytest.approx(ground["z"][27][0] + 0.06, abs=1e-3)  # w = 0, b = 0; a little above
    assert found["contours"].traces[0]["z"] == ground["z"]


def test_a_list_is_written_once_and_a_label_is_never_a_text() -> None:
    numbers: list[float | None] = [0.5, None, *map(float, range(8))]
    same, text = "<b>a text of more than 24 letters</b>", "<b>a text of more than 24 letters</b>"
    packed = pack({"s0": {"x": numbers, "y": [list(numbers), [True] * 8], "label": Label(same), "text": text}})
    assert len(packed["shared"]) == 3
    written: Any = json.loads(to_script(packed))
    section, shared = written["sections"]["s0"], written["shared"]
    assert section["x"] == section["y"][0] and shared[section["x"]["#"]] == numbers
    assert section["y"][1] == [True] * 8
    assert shared[section["label"]["#"]] == same
    assert shared[section["text"]["#"]].startswith("&lt;b&gt;")
