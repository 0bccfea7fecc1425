"""Ctrl-C and SIGTERM in a command."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import typer


@contextmanager
def stoppable(line: str | None = None) -> Iterator[None]:
    """End the command with status 128 + n if signal n stopped the work; ``line`` says what became of it."""
    from rueda.jobs.stopping import as_stopped

    try:
        yield
    except KeyboardInterrupt as interrupt:
        stopped = as_stopped(interrupt)
        if line is not None and stopped.signal != signal.SIGPIPE:
            typer.echo(line, err=True)
        raise typer.Exit(stopped.exit_status) from None


def resumable() -> AbstractContextManager[None]:
    """End a command that goes on when it is called again, as :func:`stoppable` does."""
    return stoppable("stopped; the same command goes on where it was")
