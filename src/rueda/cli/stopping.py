"""What a command does when a signal stops it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import typer


@contextmanager
def stoppable(line: str | None = None) -> Iterator[None]:
    """End the command if a signal stops the block; :mod:`rueda.world.signals` has the status.

    Before that ``line`` is printed, unless the block has saved its state and has said so. SIGUSR1 has no effect before
    the command trains.
    """
    from rueda.jobs.stopping import as_stopped, signals_raise_stopped

    try:
        with signals_raise_stopped():
            yield
    except KeyboardInterrupt as interrupt:
        stopped = as_stopped(interrupt)
        if line is not None and not stopped.saved and stopped.signal != signal.SIGPIPE:
            typer.echo(line, err=True)
        raise typer.Exit(stopped.exit_status) from None


def resumable() -> AbstractContextManager[None]:
    """Do the same as :func:`stoppable` for a command that resumes when it is run again."""
    return stoppable("stopped; run the same command again to resume")
