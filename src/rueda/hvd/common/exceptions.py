"""What can go wrong between the workers of a Horovod-shaped script.

::

    RuntimeError
    └── HorovodInternalError            a collective failed: a worker is gone, the world was shut down
        ├── MismatchError               the ranks disagree about a tensor; the world stays usable
        └── StallError                  a tensor waited too long for some ranks; the world is given up
    HostsUpdatedInterrupt               hosts came or went; not an error: an elastic script goes on
"""

from __future__ import annotations

from rueda.errors import RuedaError


class HorovodInternalError(RuntimeError, RuedaError):
    """A collective failed on every rank; an elastic script restores its last state and starts again."""


class MismatchError(HorovodInternalError):
    """The ranks submitted one name with different shapes, types, operations, roots or devices."""


class StallError(HorovodInternalError):
    """Some ranks never submitted a tensor that the others wait for, longer than the stall limit allows."""


class HostsUpdatedInterrupt(RuntimeError):
    """The set of hosts has changed: an elastic script re-forms its world before the next step.

    Args:
        skip_sync: the state is the same on all workers and need not be sent again.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the hosts have changed")
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """Kept for scripts that name it: Rueda has no compiled part whose version could differ."""


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    """Say that a framework has changed since installation (never so here: nothing is compiled against it)."""
    return f"{name}: expected version {version}, got {installed_version}; reinstall"
