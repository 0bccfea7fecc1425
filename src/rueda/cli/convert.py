"""``rueda convert``: prints a serial script's way to many workers as a diff, as :mod:`rueda.check.convert` makes it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rueda.cli import completion

EPILOG = "Example: rueda convert train.py --to ddp --write"


def convert(
    script: Annotated[
        Path, typer.Argument(help="A Python script that trains alone.", autocompletion=completion.scripts)
    ],
    to: Annotated[
        str,
        typer.Option(
            help="What makes it parallel: ddp (torch alone), rueda, or horovod.", autocompletion=completion.styles
        ),
    ] = "ddp",
    write: Annotated[bool, typer.Option("--write", help="Change the file instead of printing the diff.")] = False,
) -> None:
    """Turn a serial script into a parallel one.

    The change is printed as a diff, in which each part has a comment that says why. What is not sure becomes a
    TODO(rueda) line and a warning.
    """
    from rueda.check.convert.files import convert_file, diff_of, write_conversion

    conversion = convert_file(script, to=to)
    for warning in conversion.warnings:
        typer.echo(f"rueda convert: {warning}", err=True)
    if write:
        typer.echo(write_conversion(script, conversion, to=to))
    else:
        typer.echo(diff_of(script, conversion), nl=False)
