"""The exceptions of Horovod's interface.

::

    RuntimeError
    └── HorovodInternalError            a collective failed: a worker is gone, or hvd was shut down
        ├── MismatchError               the ranks disagree about a tensor; other collectives can still run
        ├── OperationError              a reduction that is not defined for these tensors; also a ValueError
        └── StallError                  a tensor waited too long for some ranks; no collective can run any more
    HostsUpdatedInterrupt               hosts were added or removed; not an error: an elastic script continues
"""

from __future__ import annotations

from rueda.errors import RuedaError


class HorovodInternalError(RuntimeError, RuedaError):
    """A collective failed on every rank; an elastic script restores its last state and starts again."""


class MismatchError(HorovodInternalError):
    """The ranks submitted collectives of one name that differ in shape, dtype, operation, root rank or device."""


class OperationError(HorovodInternalError, ValueError):
    """A reduction is not defined for a collective or dtype; nothing was sent. Horovod raises either base, by case."""


class StallError(HorovodInternalError):
    """Some ranks did not submit a tensor within the time limit for stalls, while the others waited for it."""


class HostsUpdatedInterrupt(RuntimeError):
    """The set of hosts has changed: an elastic script re-creates its process group before the next step.

    Args:
        skip_sync: whether the state is the same on all workers and need not be broadcast.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the hosts have changed")
        self.skip_sync = skip_sync


def get_version_mismatch_message(name: str, version: str, installed_version: str | None) -> str:
    """Return the text of a :class:`HorovodVersionMismatchError`."""
    return f"{name}: expected version {installed_version}, got {version}; install the expected one"


class HorovodVersionMismatchError(ImportError):
    """A framework has another version than the one that Horovod was compiled for.

    Rueda never raises it, since it has no compiled part; it is defined for scripts that name it.
    """

    def __init__(self, name: str, version: str, installed_version: str | None) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version), name=name)
        self.version, self.installed_version = version, installed_version
