"""The command line: one thin file a command, each the twin of a function in the library.

A user's mistake (:class:`rueda.errors.RuedaError`) is one line on standard error and exit status 2;
of a process that was started and failed (:class:`rueda.errors.JobError`), its own status.
Nothing here imports torch before a command needs it, so that ``rueda --help`` answers at once.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the ``rueda`` command."""
    from rueda.cli.app import app
    from rueda.errors import RuedaError
    from rueda.world.cores import waiting

    os.environ.update(waiting(os.environ))  # torch reads it when it is loaded, which is later

    try:
        app()
    except RuedaError as error:
        print(f"rueda: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
