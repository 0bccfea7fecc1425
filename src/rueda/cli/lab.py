"""``rueda lab``: lists the labs of the course, opens one in the browser, or writes static pages of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EPILOG = "Example: rueda lab 1 --export lab-1.html"


def lab(
    number: Annotated[int | None, typer.Argument(help="Number of the lab; without it, the labs are listed.")] = None,
    export: Annotated[
        Path | None, typer.Option(help="Write a static page; without a number, all labs into this folder.")
    ] = None,
    edit: Annotated[bool, typer.Option("--edit", help="Show the notebook's code, which can be changed.")] = False,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port; by default a free one.")] = None,
    browser: Annotated[bool, typer.Option(help="Open the browser.")] = True,
) -> None:
    """Take the course, in the browser.

    The labs are notebooks that compute live through the library: they need no GPU and no network. What was answered is
    kept, and listed here.
    """
    from rueda.errors import LabError
    from rueda.labs.catalogue import lab as find

    if (export is not None or number is None) and (edit or port is not None):
        given = "--edit" if edit else "--port"
        raise LabError(given, expected="a lab to open", got="no lab", do="write e.g. `rueda lab 1`, without --export")
    if number is None and export is None:
        _print_list()
        return
    if export is not None:
        from rueda.labs.exporting import export_all, export_lab

        written = export_all(export, show=True) if number is None else [export_lab(find(number), export, show=True)]
        for file in written:
            typer.echo(f"{file}: open it in a browser")
        return
    from rueda.labs.opening import open_lab

    assert number is not None
    raise typer.Exit(open_lab(find(number), edit=edit, port=port, browser=browser))


def _print_list() -> None:
    from rueda.labs.answering import items
    from rueda.labs.catalogue import LABS
    from rueda.labs.progress import answered
    from rueda.terminal.table import TextTable, print_table

    rows, unfinished = [], None
    for one in LABS:
        known = items(one.number)
        done = len(answered(one.number) & set(known))
        unfinished = unfinished or (one.number if done < len(known) else None)
        rows.append([str(one.number), one.title, f"{one.minutes} min", f"{done} of {len(known)}", one.about])
    print_table(TextTable("The course", ["lab", "title", "time", "answered", "about"], rows, left=["title", "about"]))
    typer.echo(
        f"`rueda lab {unfinished}` opens lab {unfinished} in the browser."
        if unfinished
        else "All is answered. `rueda assess --new task` gives out the task that ends the course."
    )
