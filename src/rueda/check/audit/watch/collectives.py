"""Collectives that the script calls itself: how many, of which kind; and the contexts that make uneven inputs right."""

from __future__ import annotations

import sys
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging import utils as averaging

from rueda.check.audit.watch.counters import Counters
from rueda.check.audit.watch.journal import Journal
from rueda.check.audit.watch.place import place
from rueda.check.patches import Patches

_VALUES = (
    *("all_reduce", "reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "gather", "gather_object"),
    *("reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single"),
)
_OTHERS = ("barrier", "monitored_barrier", "broadcast", "broadcast_object_list", "scatter", "scatter_object_list")


class CollectiveWatch:
    """Counts the collectives of torch, of Rueda and of Horovod's functions.

    Args:
        journal: where contexts are noted.
        counters: what has happened so far.
    """

    def __init__(self, journal: Journal, counters: Counters) -> None:
        self._journal, self._counters = journal, counters
        self._patches: Patches | None = None
        self._destroyed: list[Any] = []
        self._watches_horovod = False

    def install(self, patches: Patches) -> None:
        """Replace torch's functions, and those of Rueda's world."""
        from rueda.world.world import World

        self._patches = patches
        for owner in (dist, distributed_c10d):
            for name in _VALUES:
                patches.replace(owner, name, self._counting(name, moves_values=True))
            for name in _OTHERS:
                patches.replace(owner, name, self._counting(name, moves_values=False))
        for name in ("all_reduce", "all_gather", "all_gather_object", "gather"):
            if hasattr(World, name):
                patches.replace(World, name, self._counting(name, moves_values=True))
        for owner in (dist, distributed_c10d):
            patches.replace(owner, "destroy_process_group", self._destroying)
        patches.replace(Join, "__enter__", self._joining)
        patches.replace(averaging, "average_parameters", self._averaging)

    def _averaging(self, original: Any) -> Any:
        def average_parameters(*args: Any, **options: Any) -> Any:
            self._journal.note("averaging", where=place())
            return original(*args, **options)

        return average_parameters

    def _destroying(self, original: Any) -> Any:
        """Keep the objects of destroyed groups until the process ends.

        If the last reference goes with a DistributedDataParallel, torch 2.13 waits for a thread of Gloo while it holds
        Python's lock, which that thread may need.
        """

        def destroy(*args: Any, **options: Any) -> Any:
            self._destroyed += distributed_c10d._world.pg_map
            return original(*args, **options)

        return destroy

    def watch_horovod(self) -> None:
        """Replace Horovod's functions once the script has loaded them."""
        module = sys.modules.get("horovod.torch")
        if module is None or self._patches is None or self._watches_horovod:
            return
        self._watches_horovod = True
        for name in ("allreduce", "allreduce_", "allgather", "allgather_object", "grouped_allreduce"):
            if hasattr(module, name):
                self._patches.replace(module, name, self._counting(name, moves_values=True))
        if hasattr(module, "join"):
            self._patches.replace(module, "join", self._joining)

    def _counting(self, name: str, *, moves_values: bool) -> Any:
        is_sum = "reduce" in name

        def replaced(original: Any) -> Any:
            def collective(*args: Any, **options: Any) -> Any:
                counters = self._counters
                if moves_values:
                    counters.collectives += 1
                    counters.all_reduces += is_sum
                else:
                    counters.other_collectives += 1
                return original(*args, **options)

            return collective

        return replaced

    def _joining(self, original: Any) -> Any:
        def enter(*args: Any, **options: Any) -> Any:
            self._journal.note("join", where=place())
            return original(*args, **options)

        return enter
