"""``rueda demo``: a short study for newcomers, which ``make demo`` runs.

The demonstration is an ordinary study: the task's own recipe, several seeds, and as controls one worker with batch norm
and one whose rate decays where the batch of many grows, so that what helps any training is not mistaken for a gain of
many workers.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rueda.cli.options import Epochs
from rueda.cli.stopping import resumable

if TYPE_CHECKING:
    from rueda.records.study import Study

TASK, WORKERS = "glyphs-cnn", 8
ROWS = (
    "one-worker", "naive", "linear-warmup", "batch-norm", "batch-norm+linear-warmup", "batch-norm+batch-growth",
    "one-worker+batch-norm", "one-worker+decay", "one-worker+batch-norm+decay",
)  # fmt: skip


def demo(
    epochs: Epochs = None,
    seeds: Annotated[int, typer.Option(help="How many times each row is trained.")] = 3,
    folder: Annotated[Path, typer.Option(help="Where the study is written.")] = Path("runs", "demo"),
    jobs: Annotated[int, typer.Option(help="Trainings at a time.")] = 2,
) -> None:
    """Show what 8 workers do to an accuracy.

    A small network is trained with and without remedies; the demo needs no download and no GPU.
    """
    from rueda.cli.study import show_study
    from rueda.study import study_techniques

    started = time.monotonic()
    typer.echo(
        f"{TASK}: one worker, then {WORKERS} workers rehearsed in one process, with and without remedies.", err=True
    )
    with resumable():
        found = study_techniques(TASK, WORKERS, rows=ROWS, seeds=seeds, epochs=epochs, folder=folder, jobs=jobs)
    show_study(found, folder, as_json=False)
    typer.echo(f"{summary(found)}\n{time.monotonic() - started:.0f} s. Next: rueda study --help")


def summary(study: Study) -> str:
    """Return the result in sentences: the accuracy that many workers lose, the remedies, and the controls.

    All remedies are named, not only the best of them: choosing one by its test accuracy would flatter it. How the best
    one compares with the strongest row of one worker is said below the table.
    """
    from rueda.terminal.numbers import percent

    def accuracy(name: str) -> str:
        row = study.row(name)
        return "–" if row is None else percent(row.value, row.spread)

    remedies = ", ".join(f"{name} {accuracy(name)}" for name in ROWS if name.startswith("batch-norm"))
    return (
        f"Test accuracy of one worker: {accuracy('one-worker')}; of {study.workers} workers with nothing else changed: "
        f"{accuracy('naive')}.\n{study.workers} workers with remedies: {remedies}.\n"
        f"The fair controls, one worker with batch norm: {accuracy('one-worker+batch-norm')}; with a decaying rate: "
        f"{accuracy('one-worker+decay')}; with both: {accuracy('one-worker+batch-norm+decay')}."
    )
