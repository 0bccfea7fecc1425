"""The machine as a worker uses it: threads, devices, the backend of its process group."""

from __future__ import annotations

import os
import socket
import time
from typing import Any

import torch
import torch.distributed as dist

from rueda.check.audit.watch.counters import Counters
from rueda.check.audit.watch.journal import Journal
from rueda.check.audit.watch.place import place
from rueda.check.patches import Patches
from rueda.world.cores import usable_cores


class MachineWatch:
    """Notes the machine at the end, and how long the loop has waited for its loader since the second step.

    Args:
        journal: where it is noted.
        counters: what has happened so far.
    """

    def __init__(self, journal: Journal, counters: Counters) -> None:
        self._journal, self._counters = journal, counters
        self._threads_place, self._began, self._loading = "", 0.0, 0.0
        self._device: torch.device | None = None
        self._backend = ""  # while the script trains: it destroys its process group before the end

    def install(self, patches: Patches) -> None:
        """Replace the function that sets the number of threads."""
        patches.replace(torch, "set_num_threads", self._setting)
        self._journal.on_finish(self._finish)

    def _setting(self, original: Any) -> Any:
        def set_num_threads(count: int) -> None:
            self._threads_place = place()
            original(count)

        return set_num_threads

    def begin(self, device: torch.device) -> None:
        """Begin to count time, once the first step has loaded and compiled what it needs.

        Args:
            device: where the parameters are.
        """
        self._device, self._began, self._loading = device, time.perf_counter(), self._counters.loading
        self._backend = dist.get_backend() if dist.is_available() and dist.is_initialized() else ""

    def _finish(self) -> None:
        if self._device is None:
            return
        device = self._device
        gpu = str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""
        self._journal.note(
            "machine", host=socket.gethostname(), threads=torch.get_num_threads(), cores=usable_cores(),
            threads_place=self._threads_place, device=device.type, process=os.getpid(), gpu=gpu,
            backend=self._backend, seconds=time.perf_counter() - self._began,
            loading=self._counters.loading - self._loading,
        )  # fmt: skip
