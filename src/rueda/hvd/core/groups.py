"""The process groups that carry large tensors: one for each process set and kind of device, made when first needed.

They are the engine's own. What a script does with torch.distributed itself goes over other connections and cannot
come between.
"""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from rueda.hvd.core.entries import MAX, MIN, PRODUCT, SUM

# A collective that was released by the coordinator is entered by all; who dies is noticed by its closed connection.
_PATIENCE = timedelta(days=7)

OPERATIONS = {
    SUM: dist.ReduceOp.SUM,
    MIN: dist.ReduceOp.MIN,
    MAX: dist.ReduceOp.MAX,
    PRODUCT: dist.ReduceOp.PRODUCT,
}


class Groups:
    """All groups of one world, by name. ``store`` is where their members find each other."""

    def __init__(self, store: Any, rank: int) -> None:
        self._store = store
        self._rank = rank
        self._groups: dict[tuple[str, str], Any] = {}
        self._dropped: list[str] = []

    def get(self, name: str, members: tuple[int, ...], device: str = "cpu") -> Any:
        """Give the group of these ranks; the first call makes it, and all members must make it then."""
        key = (name, device)
        if key not in self._groups:
            self._groups[key] = self._make(f"{name}/{device}", members, device)
        return self._groups[key]

    def _make(self, name: str, members: tuple[int, ...], device: str) -> Any:
        store = PrefixStore(f"group/{name}", self._store)
        rank = members.index(self._rank)
        if device == "cuda":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = _PATIENCE
            return dist.ProcessGroupNCCL(store, rank, len(members), options)
        return dist.ProcessGroupGloo(store, rank, len(members), _PATIENCE)

    def drop(self, name: str) -> None:
        """Close the groups of this name."""
        for other, device in list(self._groups):
            if other == name:
                _close(self._groups.pop((other, device)))

    def drop_later(self, name: str) -> None:
        """Note groups to be closed: while garbage is collected is no time to close connections."""
        self._dropped.append(name)

    def sweep(self) -> None:
        """Close what was noted."""
        while self._dropped:
            self.drop(self._dropped.pop())

    def close(self) -> None:
        """Close all."""
        groups, self._groups = self._groups, {}
        for group in groups.values():
            _close(group)


def _close(group: Any) -> None:
    with contextlib.suppress(AttributeError, RuntimeError):  # older torch: dropping it is enough
        group.shutdown()


def moved_in_by(tensors: list[torch.Tensor]) -> Any:
    """Mark, on a GPU, the moment when these tensors are ready; None on the CPU, where they are."""
    if not tensors or tensors[0].device.type != "cuda":
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event


def wait_for(event: Any) -> None:
    """Let what follows on this thread's stream wait for a mark of :func:`moved_in_by`."""
    if event is not None:
        torch.cuda.current_stream().wait_event(event)
