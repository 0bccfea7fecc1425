"""``rueda data``: have the published data sets, checked by checksum."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rueda.terminal.delayed import DelayedProgress

if TYPE_CHECKING:
    from rueda.tasks.datasets.published import Progress, Published

data_app = typer.Typer(help="Have the published data sets, checked by checksum.", no_args_is_help=True)


@data_app.command("get")
def get(
    name: Annotated[str, typer.Argument(help="fashion-mnist or cifar-10", show_default=False)],
    directory: Annotated[
        Path | None, typer.Option("--from", help="Take the files from this folder, into the cache.", show_default=False)
    ] = None,
) -> None:
    """Have a data set, whole and verified: where it lies, from a folder, or from its publisher."""
    from rueda.tasks import datasets

    with DelayedProgress(speak=True) as progress:
        folder = datasets.get(name, directory, progress.show)
    typer.echo(f"{name}: verified, in {folder}")


@data_app.command("list")
def list_(
    json: Annotated[bool, typer.Option("--json", help="For a program to read.")] = False,
) -> None:
    """Say which data sets are there, where, and whether their checksums are right."""
    from rueda.tasks import datasets

    rows: list[dict[str, Any]] = [{"name": "glyphs", "state": "generated", "place": None, "folder": None}]
    with DelayedProgress(speak=True) as progress:
        rows += [_look(each, progress.show) for each in datasets.PUBLISHED.values()]
    if json:
        import json as encoder

        typer.echo(encoder.dumps(rows))
        return
    for row in rows:
        where = f"  {row['folder']} ({row['place']})" if row["folder"] else ""
        typer.echo(f"{row['name']:14s} {row['state']}{where}")


def _look(published: Published, progress: Progress) -> dict[str, Any]:
    from rueda.errors import DataError
    from rueda.tasks.datasets.store import locate, verify_all

    found = locate(published)
    if found is None:
        return {"name": published.name, "state": "not here", "place": None, "folder": None}
    try:
        verify_all(published, found.folder, progress)
        state = "verified"
    except DataError as error:
        state = f"damaged: {error}"
    return {"name": published.name, "state": state, "place": found.kind, "folder": str(found.folder)}
