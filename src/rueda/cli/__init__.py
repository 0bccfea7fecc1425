"""The command line: one thin file for each command, which calls a function of the library that does the same.

A user's mistake (:class:`rueda.errors.RuedaError`) is printed as one line on standard error, with exit status 2. If a
process that the command started fails (:class:`rueda.errors.JobError`), the command ends with the status of that
process. Nothing here imports torch before a command needs it, so that ``rueda --help`` answers at once.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from contextlib import suppress
from io import TextIOWrapper


def main() -> None:
    """Run the ``rueda`` command, then end the process with its exit status."""
    from rueda.files.patient_output import prepare_standard_streams
    from rueda.files.plain_warnings import print_plain_warnings
    from rueda.world.leaving import leave
    from rueda.world.signals import HANDLED

    prepare_standard_streams()
    print_plain_warnings()
    status = run_command()
    for number in HANDLED:  # srun sends SIGTERM once another worker has ended: this one keeps its exit status
        signal.signal(number, signal.SIG_IGN)
    leave(status)


def run_command() -> int:
    """Run the command that ``sys.argv`` holds and return its exit status; a user's mistake is printed as one line.

    So is a signal that arrives before the command handles signals itself.
    """
    from rueda.jobs.stopping import as_stopped, signals_raise_stopped

    try:
        with signals_raise_stopped():
            return _run_command()
    except KeyboardInterrupt as interrupt:
        stopped = as_stopped(interrupt)
        print(f"rueda: stopped by {signal.Signals(stopped.signal).name}", file=sys.stderr)
        return stopped.exit_status


def _run_command() -> int:
    from rueda.cli.app import app
    from rueda.cli.usage import UsageError, usage_message
    from rueda.errors import RuedaError
    from rueda.jobs.stopping import raise_if_caught
    from rueda.world.cores import waiting
    from rueda.world.elastic.membership import is_elastic

    if isinstance(sys.stdout, TextIOWrapper):  # as stderr does: a path that is no valid text is printed, not an error
        sys.stdout.reconfigure(errors="backslashreplace")
    os.environ.update(waiting(os.environ))  # torch reads the variables when it is loaded, which is later
    status = 0
    try:
        try:
            status = app(prog_name="rueda", standalone_mode=False) or 0
            raise_if_caught()  # by typer, for which every signal is SIGINT
        except UsageError as error:
            print(usage_message(error), file=sys.stderr)
            status = error.exit_code
        except SystemExit as left:
            if isinstance(left.code, str):  # Python prints it
                raise
            status = left.code or 0
        with suppress(BrokenPipeError):  # nobody reads the output any more
            print(end="", flush=True)
        return status
    except RuedaError as error:
        if not (is_elastic() and _told_launcher(error)):
            print(f"rueda: {error}", file=sys.stderr)
        return error.exit_status
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.ENAMETOOLONG):
            raise
        what = f"cannot open {error.filename}" if error.filename else "cannot write the output"
        print(f"rueda: {what}: {error.strerror}", file=sys.stderr)
        return 2 if error.errno == errno.ENAMETOOLONG else 1


def _told_launcher(error: Exception) -> bool:
    """Tell the launcher of an elastic job which error ends this worker; return whether it prints the error."""
    from rueda.world.elastic import failing

    return failing(error)
