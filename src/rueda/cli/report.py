"""``rueda report``: one HTML page about runs and studies; the twin of :func:`rueda.report.write_report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rueda.cli.options import PngFolder

EPILOG = "Example: rueda report runs/glyphs-study --output report.html --png figures"


def report(
    paths: Annotated[
        list[Path], typer.Argument(help="Run folders, study folders, folders that hold some, or JSON files of Rueda's.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page.")] = Path("report.html"),
    png: PngFolder = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the tables as Markdown instead of writing a page.")
    ] = False,
) -> None:
    """Write one HTML page about runs and studies: it works offline, and from their files alone."""
    if markdown:
        from rueda.report.markdown import markdown_tables

        typer.echo(markdown_tables(paths), nl=False)
        return
    from rueda.report import write_figures, write_report
    from rueda.report.png import find_browser

    if png is not None:
        find_browser()  # said before the page is written, not after
    typer.echo(f"page: {write_report(paths, output)}")
    if png is not None:
        for file in write_figures(output, png):
            typer.echo(f"figure: {file}")
