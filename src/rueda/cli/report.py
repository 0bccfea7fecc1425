"""``rueda report``: writes one HTML page about runs and studies, as :func:`rueda.report.write_report` does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rueda.cli import completion
from rueda.cli.options import PngFolder

EPILOG = "Example: rueda report runs/glyphs-study --output report.html --png figures"


def report(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="Run folders, study folders, folders that hold some, or JSON files of Rueda's.",
            autocompletion=completion.results,
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page.")] = Path("report.html"),
    png: PngFolder = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the tables as Markdown instead of writing a page.")
    ] = False,
) -> None:
    """Write one HTML page about runs and studies.

    The page is a single file, made from the files of the runs alone, and works offline.
    """
    if markdown:
        from rueda.report.markdown import markdown_tables

        typer.echo(markdown_tables(paths), nl=False)
        return
    from rueda.report import write_figures, write_report
    from rueda.report.png import find_browser

    if png is not None:
        find_browser()  # a missing browser is reported before the page is written
    typer.echo(f"page: {write_report(paths, output)}")
    if png is not None:
        for file in write_figures(output, png):
            typer.echo(f"figure: {file}")
