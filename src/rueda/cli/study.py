"""``rueda study``: the technique table; the twin of :func:`rueda.study.study_techniques`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rueda.cli.options import Epochs, PrintFile, Settings, TaskName
from rueda.cli.stopping import resumable
from rueda.cli.study_output import default_folder, write_page

if TYPE_CHECKING:
    from rueda.records.study import Study

EPILOG = "Example: rueda study glyphs-cnn --workers 8 --rows one-worker,naive,lamb,batch-norm+linear-warmup --seeds 3"


def study(
    task: TaskName,
    workers: Annotated[int, typer.Option("--workers", "-np", help="How many workers are rehearsed.")] = 8,
    rows: Annotated[
        str | None, typer.Option(help="Named recipes, by commas, combined by +; by default all of `rueda recipe list`.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many times each row is trained.")] = 1,
    epochs: Epochs = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where to write, and to go on; by default runs/study-TASK-WORKERS.")
    ] = None,
    settings: Settings = None,
    jobs: Annotated[int, typer.Option(help="Trainings at a time.")] = 2,
    confirm: Annotated[bool, typer.Option("--confirm", help="Re-run the best row on real processes.")] = False,
    as_json: PrintFile = False,
) -> None:
    """Show what many workers do to the accuracy of a task, and which technique brings it back."""
    folder = folder or Path(f"{default_folder(task)}-{workers}")
    with resumable():
        from rueda.study.techniques import RunsFailed, study_techniques

        try:
            found = study_techniques(
                task, folder=folder, workers=workers, rows=_names(rows), seeds=seeds, epochs=epochs,
                settings=settings or [], jobs=jobs, confirm=confirm, progress=not as_json,
            )  # fmt: skip
        except RunsFailed as error:  # the rows that finished are shown all the same
            show_study(error.study, folder, as_json)
            raise
        show_study(found, folder, as_json)


def _names(rows: str | None) -> list[str] | None:
    return None if rows is None else [name for name in rows.split(",") if name.strip()]


def show_study(found: Study, folder: Path, as_json: bool) -> None:
    """Print the table and its path, or the result file; then write the page, which may fail alone."""
    if as_json:
        typer.echo(found.to_json())
    else:
        from rueda.study.table import table_of
        from rueda.terminal.table import print_table

        typer.echo()
        print_table(table_of(found))
        typer.echo(f"study: {folder / 'study.json'}")
    write_page(folder, as_json)
