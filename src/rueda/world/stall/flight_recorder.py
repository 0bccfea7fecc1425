"""torch's flight recorder: NCCL's own time limits beside those of the watcher, and dumps of the recorder as files.

The recorder keeps the last 2,000 collectives of each process, of NCCL and Gloo: kind, shapes, state, times, stack. With
``--stall-dump FOLDER`` (``RUEDA_STALL_DUMP``) every rank that answers writes it to ``FOLDER/trace_rank_N`` when a
stall is reported, and once more when the job ends; ``torchfrtrace FOLDER`` compares the files of all ranks.

NCCL's process groups have a watchdog, and a monitor that aborts the process if the watchdog does not answer. Both are a
second net behind the watcher, which names the missing rank and knows a download from a stall, so they come later:

=====================================  ===============================================================================
``TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC``   a minute after ``--stall-timeout``, and at least torch's own 480 s
``TORCH_NCCL_ENABLE_MONITORING``       0 with ``--stall-timeout 0``: nothing ends a job that may wait for ever
``TORCH_FR_BUFFER_SIZE``               2,000, since the watcher reads the recorder
``TORCH_NCCL_DUMP_ON_TIMEOUT``         1 with ``--stall-dump``: NCCL's errors write the same files
``TORCH_FR_DUMP_TEMP_FILE``            the beginning of their names (once ``TORCH_NCCL_DEBUG_INFO_TEMP_FILE``)
time limit of the process groups       a week; ``--stall-timeout`` if the recorder is off, so that there is no watcher
=====================================  ===============================================================================

A variable that the user has set is left as it is.
"""

from __future__ import annotations

import math
import pickle
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from rueda.errors import RunError
from rueda.files.atomic import write_atomically
from rueda.world.stall.limits import DUMP, GROUP_TIMEOUT, StallLimits

_FILE = "trace_rank_"
_AFTER_SECONDS = 60.0
_HEARTBEAT_SECONDS = 480.0  # torch's default
_NUM_COLLECTIVES = 2000
_BUFFER = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_AT_MOST_EVERY_SECONDS = 1.0
_LAST_SECONDS = 10.0


def torch_variables(limits: StallLimits, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of torch to set before a process group is created; those that the user has set are left out.

    >>> torch_variables(StallLimits(timeout=1800.0), {"TORCH_FR_BUFFER_SIZE": "500"})
    {'TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC': '1860'}
    """
    wanted = {}
    if not any(name in environ for name in _BUFFER):
        wanted[_BUFFER[0]] = str(_NUM_COLLECTIVES)
    if limits.timeout:
        wanted["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"] = str(
            math.ceil(max(_HEARTBEAT_SECONDS, limits.timeout + _AFTER_SECONDS))
        )
    else:
        wanted["TORCH_NCCL_ENABLE_MONITORING"] = "0"
    if folder := environ.get(DUMP):
        wanted["TORCH_NCCL_DUMP_ON_TIMEOUT"] = "1"
        if not any(name in environ for name in _FILES):
            wanted |= dict.fromkeys(_FILES, str(Path(folder) / _FILE))
    return {name: value for name, value in wanted.items() if name not in environ}


def group_timeout(limits: StallLimits, environ: Mapping[str, str]) -> timedelta:
    """Return the time limit of a process group: a watcher ends a stall earlier, unless the recorder is off."""
    sizes = [environ[name] for name in _BUFFER if name in environ]
    is_off = bool(sizes) and sizes[0].strip() == "0"
    return timedelta(seconds=limits.timeout) if is_off and limits.timeout else GROUP_TIMEOUT


class Dump:
    """Writes the recorder of this process to a file.

    Args:
        folder: where the ranks write; None or an empty name: nowhere.
        rank: the rank of this worker.
        say: tells the user that the file cannot be written.
    """

    def __init__(self, folder: str | None, rank: int, say: Callable[[str], None]) -> None:
        self.file = Path(folder) / f"{_FILE}{rank}" if folder else None
        self._say = say
        self._lock = threading.Lock()
        self._begun_at = -math.inf

    @property
    def remark(self) -> str:
        """Where the files of all ranks are; empty if none are written."""
        return "" if self.file is None else f"flight recorders: {self.file.parent}/{_FILE}*; torchfrtrace compares them"

    def begin(self) -> None:
        """Write the file in another thread, unless that was begun just now, since several ranks may ask for it."""
        if time.monotonic() - self._begun_at > _AT_MOST_EVERY_SECONDS:
            self.finish(0.0)

    def finish(self, seconds: float = _LAST_SECONDS) -> None:
        """Write the file in a thread, and wait for it for at most ``seconds``, since a disk may not answer."""
        if self.file is not None:
            self._begun_at = time.monotonic()
            thread = threading.Thread(target=self._write, name="rueda stall dump", daemon=True)
            thread.start()
            thread.join(seconds)

    def _write(self) -> None:
        with self._lock:
            if self.file is None:
                return
            try:
                write_atomically(self.file, _recording())
            except RunError as error:
                self.file = None
                self._say(f"{error}\n")


def _recording() -> bytes:
    """Return torch's recorder as the pickle that torchfrtrace reads; Gloo does not tell the members of its groups."""
    from torch._C import _distributed_c10d

    found = pickle.loads(_distributed_c10d._dump_fr_trace())  # type: ignore[attr-defined]
    found.setdefault("entries", [])
    for group, name in list(dist.distributed_c10d._world.pg_names.items()):
        about = {"name": name, "desc": group.group_desc, "ranks": str(dist.get_process_group_ranks(group))}
        found["pg_config"].setdefault(name, about)
    return pickle.dumps(found)
