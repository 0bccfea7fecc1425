"""``rueda study``: compares techniques in a table, as :func:`rueda.study.study_techniques` does."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rueda.cli import completion
from rueda.cli.options import Epochs, Grace, Jobs, PrintFile, Settings, StallDump, StallTimeout, StallWarning, TaskName
from rueda.cli.stopping import resumable
from rueda.cli.study_output import default_folder, show_result

if TYPE_CHECKING:
    from rueda.records.study import Study

EPILOG = "Example: rueda study glyphs-cnn --rows one-worker,naive,lamb --seeds 3"


def study(
    task: TaskName,
    workers: Annotated[int, typer.Option("--workers", "-np", help="Number of workers to rehearse.")] = 8,
    rows: Annotated[
        str | None,
        typer.Option(
            help="Named recipes or fields (sync_every=8), separated by commas, combined by +; by default all recipes "
            "and some combinations.",
            autocompletion=completion.rows,
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Trainings of each row, each with its own seed.")] = 1,
    epochs: Epochs = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the results; an interrupted study resumes there. By default runs/study-TASK-WORKERS."
        ),
    ] = None,
    settings: Settings = None,
    jobs: Jobs = 2,
    grace: Grace = None,
    confirm: Annotated[
        bool, typer.Option("--confirm", help="Repeat the best row on real processes, with fresh seeds.")
    ] = False,
    tolerance: Annotated[
        float | None,
        typer.Option(help="How much worse is still kept: 0.01, the default, is 1 point, or 1 % of another metric."),
    ] = None,
    as_json: PrintFile = False,
    stall_warning: StallWarning = None,
    stall_timeout: StallTimeout = None,
    stall_dump: StallDump = None,
) -> None:
    """Compare one worker's accuracy with many's.

    Each row of the table is a technique that may bring back the accuracy which a large global batch costs. A task with
    another metric is compared by it, and one without any by its loss.
    """
    from rueda.world.stall.limits import stall_variables

    os.environ.update(stall_variables(stall_warning, stall_timeout, stall_dump))
    folder = folder or Path(f"{default_folder(task)}-{workers}")
    with resumable():
        from rueda.study.techniques import RunsFailed, study_techniques

        try:
            found = study_techniques(
                task, folder=folder, workers=workers, seeds=seeds, epochs=epochs, settings=settings or [], jobs=jobs,
                rows=None if rows is None else [name for name in rows.split(",") if name.strip()], confirm=confirm,
                progress=not as_json, tolerance=tolerance,
            )  # fmt: skip
        except RunsFailed as error:  # show the rows that did finish
            show_study(error.study, folder, as_json)
            raise
        show_study(found, folder, as_json)
    if not as_json:
        _show_next(found, folder)


def _show_next(found: Study, folder: Path) -> None:
    """Print the command that compares one worker's model with that of the best row."""
    from rueda.records.study import BASELINE

    rows = [row for row in (found.row(BASELINE), found.best()) if row is not None and not row.diverged]
    runs = [folder / row.runs[0] for row in rows if row.runs and (folder / row.runs[0]).is_dir()]
    if runs:
        typer.echo(f"next: rueda examine {shlex.join(map(str, runs))} --sharpness")


def show_study(found: Study, folder: Path, as_json: bool) -> None:
    """Print the table of a study, or its file, and write its page."""
    from rueda.study.table import table_of
    from rueda.terminal.study_words import remarks

    if not as_json:
        typer.echo()
    show_result(found, folder, as_json, table_of(found), *remarks(found))
