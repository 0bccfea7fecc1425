"""``rueda archive``: a study in two small files; the twin of :func:`rueda.records.archive.archive_study`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EPILOG = "Example: rueda archive runs/study-glyphs-cnn-8 docs/results/glyphs-8-workers"


def archive(
    study: Annotated[Path, typer.Argument(help="The folder of a study.")],
    to: Annotated[Path, typer.Argument(help="Where to write study.json and runs.jsonl.")],
) -> None:
    """Copy a study's tables and curves, without checkpoints, into files that can be committed; report reads them."""
    from rueda.records.archive import archive_study

    found = archive_study(study, to)
    if found.modified:
        typer.echo(
            f"trained from a modified tree ({', '.join(found.modified)}): no commit gives these results again", err=True
        )
    typer.echo(f"archive: {found.file} with {found.num_runs:,} runs")
