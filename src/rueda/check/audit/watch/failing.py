"""The end of an observed script that has raised an exception."""

from __future__ import annotations

import signal
import sys
from typing import NoReturn

from rueda.check.audit.watch.place import users_traceback
from rueda.world.leaving import leave
from rueda.world.signals import exit_status


def leave_failed(error: BaseException) -> NoReturn:
    """Print the traceback of the script without the frames of its observer, and end as Python would: 1, or 130."""
    sys.excepthook(type(error), error, users_traceback(error))
    leave(exit_status(signal.SIGINT) if isinstance(error, KeyboardInterrupt) else 1)
