"""``rueda demo``: what a newcomer sees first; ``make demo`` runs it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rueda.cli.stopping import resumable

if TYPE_CHECKING:
    from rueda.records.study import Study

_TASK, _WORKERS, _EPOCHS = "glyphs-cnn", 8, 3
_SETTINGS = ("rate=0.015",)
_ROWS = (
    "one-worker", "naive", "linear-scaling", "linear-warmup", "adascale", "lamb", "larc", "batch-norm",
    "batch-norm+linear-warmup", "one-worker+batch-norm",
)  # fmt: skip


def demo(
    epochs: Annotated[int, typer.Option(help="Passes over the data.")] = _EPOCHS,
    folder: Annotated[Path, typer.Option(help="Where the study is written.")] = Path("runs", "demo"),
    jobs: Annotated[int, typer.Option(help="Trainings at a time.")] = 2,
) -> None:
    """Show what 8 workers do to the accuracy of a small network, and what brings it back. No download, no GPU."""
    from rueda.cli.study import show_study
    from rueda.study import study_techniques

    started = time.monotonic()
    typer.echo(
        f"{_TASK}: one worker, then {_WORKERS} rehearsed in one process, with and without the remedies.", err=True
    )
    with resumable():
        found = study_techniques(
            _TASK, _WORKERS, rows=_ROWS, epochs=epochs, folder=folder, settings=_SETTINGS, jobs=jobs
        )
    show_study(found, folder, as_json=False)
    typer.echo(f"{_lesson(found)}\n{time.monotonic() - started:.0f} s. Next: rueda study --help")


def _lesson(study: Study) -> str:
    """Say in two lines what the table shows."""
    naive, best = study.row("naive"), study.best()
    if naive is None or best is None or naive.against_one_worker is None or best.against_one_worker is None:
        return "See the table."
    return (
        f"{study.workers} workers, nothing else changed: {naive.against_one_worker:+.1f} points of test accuracy "
        f"against one worker.\nThe best recipe, {best.name}: {best.against_one_worker:+.1f} points."
    )
