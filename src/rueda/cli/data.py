"""``rueda data``: gets the published data sets and verifies their checksums."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rueda.terminal.delayed import DelayedProgress

if TYPE_CHECKING:
    from rueda.tasks.datasets.published import Progress, Published

_NAMES = ["fashion-mnist", "cifar-10"]
data_app = typer.Typer(help="Get and verify published data sets.", no_args_is_help=True)


@data_app.command("get")
def get(
    name: Annotated[str, typer.Argument(help=" or ".join(_NAMES), autocompletion=lambda: _NAMES, show_default=False)],
    directory: Annotated[Path | None, typer.Option("--from", help="Copy the files from this folder.")] = None,
) -> None:
    """Get a data set and verify its checksums.

    It is used where it already lies, copied from a folder (--from), or downloaded from its publisher.
    """
    from rueda.tasks import datasets

    with DelayedProgress(speak=True) as progress:
        folder = datasets.get(name, directory, progress.show)
    typer.echo(f"{name}: verified, in {folder}")


@data_app.command("list")
def list_(
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List the data sets and verify their files."""
    from rueda.tasks import datasets

    rows: list[dict[str, Any]] = [{"name": "glyphs", "state": "generated", "place": None, "folder": None}]
    with DelayedProgress(speak=True) as progress:
        rows += [_describe(each, progress.show) for each in datasets.PUBLISHED.values()]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    for row in rows:
        where = f"  {row['folder']} ({row['place']})" if row["folder"] else ""
        typer.echo(f"{row['name']:14s} {row['state']}{where}")


def _describe(published: Published, progress: Progress) -> dict[str, Any]:
    """Return where a data set was found, and whether its files have the published checksums."""
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
    return {"name": published.name, "state": state, "place": found.source, "folder": str(found.folder)}
