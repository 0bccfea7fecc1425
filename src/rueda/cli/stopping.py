"""Ctrl-C in a command that goes on when it is called again."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def resumable() -> Iterator[None]:
    """Say in one line that a signal stopped the work and that nothing is lost; the status is 128 + its number."""
    try:
        yield
    except KeyboardInterrupt as stop:
        typer.echo("stopped; the same command goes on where it was", err=True)
        raise typer.Exit(128 + getattr(stop, "signal", signal.SIGINT)) from None
