"""Mistakes in the use of commands and options, which typer finds, as one line in the style of all other messages."""

from __future__ import annotations

import re
from typing import Any

import typer

UsageError: Any = typer.BadParameter.__mro__[1]
"""the base class of these errors, which typer does not export and has moved between its versions"""
_KINDS = {"integer": "a whole number", "float": "a number", "number": "a number"}


def usage_message(error: Any) -> str:
    """Return the line to print, or the help of a group of commands that is called without a command.

    >>> usage_message(typer.BadParameter("'two' is not a valid integer.", param_hint="--workers"))
    "rueda: --workers: expected a whole number, got 'two'; see rueda --help"
    """
    text = str(error.format_message())
    if "\n" in text:
        return text
    text = re.sub(r"^Invalid value for '?([^' ]+)'?[^:]*: ", r"\1: ", text).rstrip(".")
    # Typer names the value in the message or, since it uses pydantic, in the cause.
    not_valid = re.match(r"(\S+: )(?:('.*') is not|Input should be) a valid (integer|float|number)", text)
    if not_valid is not None:
        value = not_valid[2] or repr(error.__cause__.errors()[0]["input"])
        text = f"{not_valid[1]}expected {_KINDS[not_valid[3]]}, got {value}"
    command = "rueda" if error.ctx is None else error.ctx.command_path
    return f"rueda: {text}{'' if text.endswith('?') else ';'} see {command} --help"
