"""``rueda archive``: copies a study into two small files, as :func:`rueda.records.archive.archive_study` does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rueda.cli import completion

EPILOG = "Example: rueda archive runs/study-glyphs-cnn-8 results/glyphs-cnn-8"


def archive(
    study: Annotated[Path, typer.Argument(help="The folder of a study.", autocompletion=completion.results)],
    to: Annotated[Path, typer.Argument(help="Where to write study.json and runs.jsonl.")],
) -> None:
    """Copy a study into two small files.

    They hold its tables and curves without the checkpoints, can be committed, and are read by `rueda report`.
    """
    from rueda.records.archive import archive_study

    found = archive_study(study, to)
    if found.modified:
        commits = ", ".join(found.modified)
        typer.echo(f"trained from a modified tree ({commits}): no commit reproduces these results", err=True)
    typer.echo(f"archive: {found.file} with {found.num_runs:,} runs")
