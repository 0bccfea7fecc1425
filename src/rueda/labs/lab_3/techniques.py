"""Each technique switched on and off on the small task, with eight rehearsed workers."""

from __future__ import annotations

from typing import Any

from rueda.labs.lab_3.small_task import NAIVE, RECIPE, compare, progress_plot, recipe, rows, train
from rueda.records.recipe.named import NAMED
from rueda.records.study import BASELINE, control_of
from rueda.report.figures.schedule import batch as batch_plot
from rueda.report.figures.techniques import techniques
from rueda.report.model import Entry, Section, Table
from rueda.report.plot import Plot
from rueda.terminal.metrics import write_change, write_value
from rueda.terminal.numbers import count

_BATCH_NORM = {"model": {**RECIPE.model, "batch_norm": True}}
NORMS: dict[str, dict[str, Any]] = {
    "none": {},
    "batch norm": _BATCH_NORM,
    "ghost batches of 8": {**_BATCH_NORM, "ghost_batch": 8},
    "ghost batches of 4": {**_BATCH_NORM, "ghost_batch": 4},
}
"""normalisations by name, as changes of a recipe"""
EXPORTED_NORMS = ("none", "batch norm", "ghost batches of 4")
"""those of a static page"""
UPDATES = ("gradient-noise", "longer-training", "batch-growth")
"""techniques that change the noise or the number of the updates"""
LAYERWISE = ("lars", "larc", "lamb", "novograd")
"""optimizers with a rate for each layer"""


def row_name(technique: str, batch_norm: str) -> str:
    """Return the name of a study's row.

    >>> row_name("lamb", "on"), row_name("naive", "on"), row_name("lamb", "off")
    ('batch-norm+lamb', 'batch-norm', 'lamb')
    """
    if batch_norm != "on":
        return technique
    return "batch-norm" if technique == NAIVE else f"batch-norm+{technique}"


def on_and_off(technique: str, batch_norm: str) -> list[Plot | Table]:
    """Train with and without a technique, and the control: one worker with the same network and optimizer."""
    on, off = row_name(technique, batch_norm), row_name(NAIVE, batch_norm)
    control = control_of(on)
    section = rows([BASELINE, *([control] if control else []), off, on])
    plots = [techniques(section), progress_plot(section)]
    if technique == "batch-growth":
        drawn = batch_plot(section)
        drawn.half = False
        plots.append(drawn)
    summary = NAMED[technique].summary if technique in NAMED else technique
    return [*plots, result_table(section, f"{technique}: {summary}.")]


def normalisation(norm: str, rate: str) -> list[Plot | Table]:
    """Train eight workers with a normalisation; the control is one worker with the same network."""
    changes = NORMS[norm]
    scaled = recipe("linear-warmup") if rate == "x 8 after a warm-up" else recipe(NAIVE)
    alone = RECIPE.change(model=changes.get("model", RECIPE.model))
    lines = [train(RECIPE, BASELINE), train(recipe(NAIVE), NAIVE)]
    if changes:
        lines.append(train(alone, "one-worker+batch-norm"))
    if changes or scaled != recipe(NAIVE):
        lines.append(train(scaled.change(**changes), f"{norm}, rate {rate}"))
    section = compare(lines)
    return [techniques(section), progress_plot(section), result_table(section)]


def result_table(section: Section, note: str = "") -> Table:
    """Return the accuracies, updates and differences of a comparison, which one seed does not decide."""
    metric = section.metric

    def against(entry: Entry) -> str:
        if entry.role == "base":
            return "–"
        return "diverged" if entry.diverged else f"{write_change(metric, entry.against)}, one seed"

    return Table.of(
        "",
        section.entries,
        {
            "condition": lambda entry: entry.name,
            "test accuracy": lambda entry: (entry.test, write_value(metric, entry.test)),
            "against one": against,
            "updates": lambda entry: (entry.updates, count(entry.updates)),
            "training accuracy": lambda entry: (entry.train, write_value(metric, entry.train)),
            "workers": lambda entry: (entry.workers, count(entry.workers)),
        },
        note,
    )


def gap_figure(workers: int) -> list[Plot | Table]:
    """Train one worker and several, with nothing else changed, for the same number of epochs."""
    alone = train(RECIPE, BASELINE)
    lines = [alone] if workers == 1 else [alone, train(recipe(NAIVE, workers), NAIVE)]
    section = compare(lines)
    return [progress_plot(section), result_table(section)]


def updates_of(name: str) -> int:
    """Return the updates that a row makes, as its training counted them."""
    line = train(recipe(name), name)
    return int(line.progress["updates"][-1] or 0)
