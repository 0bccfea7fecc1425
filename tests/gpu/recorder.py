"""Counts the kernels that a block launches on the device, and where the host would have to wait for the device.

On a GPU the host queues kernels and runs ahead of the device. It waits where it needs a value (``item()``, ``bool()``,
a boolean mask, ``nonzero``), copies in a way that blocks, or synchronises explicitly. Each wait leaves the device idle
for at least the time of a launch, so a training step should have none::

    with Recorder() as record:
        optimizer.step()
    assert record.waits == {} and record.num_kernels < 50

Kernels are the operators that the dispatcher sees; one operator may launch several kernels on a real device, and views
launch none (they are not counted). A wait inside a C++ kernel is not seen, except for the operators in ``_WAITING``.
"""

from __future__ import annotations

import threading
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gpu import impostor

aten = torch.ops.aten

_WAITING = {
    aten._local_scalar_dense.default: "item",
    aten.nonzero.default: "nonzero",
    aten.masked_select.default: "masked_select",
    aten.equal.default: "equal",
    aten.unique_dim.default: "unique",
    aten._unique2.default: "unique",
}
_INDEXING = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default)
_SYNCHRONIZES = ("synchronize", "stream.synchronize", "event.synchronize")


class Recorder(TorchDispatchMode):
    """Records the kernels and waits of the calling thread, and of the backward passes that it starts."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: Counter[str] = Counter()
        """launches by operator"""
        self.waits: Counter[tuple[str, str]] = Counter()
        """waits of the host for the device, by place in the code and kind: ``("optim/lars.py:12", "item")``"""
        self.calls: list[tuple[str, Any]] = []
        """events recorded and waited for, streams and device changes, as ``(what, where)``, of all threads"""
        self._thread = threading.get_ident()
        self._end: Callable[[], None] = lambda: None

    @property
    def num_kernels(self) -> int:
        """The number of launches."""
        return sum(self.kernels.values())

    @property
    def num_waits(self) -> int:
        """The number of waits."""
        return sum(self.waits.values())

    def __enter__(self) -> Recorder:
        self._end = impostor.listen(self._listen)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        self._end()
        super().__exit__(*error)

    def _listen(self, what: str, where: Any) -> None:
        self.calls.append((what, where))
        if what in _SYNCHRONIZES and threading.get_ident() == self._thread:
            self.waits[place(), what] += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, torch.Tensor)]
        if any(_on_device(tensor) for tensor in tensors):
            if not func.is_view:
                self.kernels[str(func)] += 1
            wait = _wait_of(func, args, kwargs, result)
            if wait is not None:
                self.waits[place(), wait] += 1
        return result


def place() -> str:
    """Return file and line of the innermost frame inside rueda, else inside torch, such as ``optim/lars.py:12``."""
    frames = [frame for frame in traceback.extract_stack() if "_python_dispatch" not in frame.filename]
    for part in ("/rueda/", "/torch/"):
        for frame in reversed(frames):
            if part in frame.filename and "/tests/" not in frame.filename:
                return f"{frame.filename.rsplit(part, 1)[1]}:{frame.lineno}"
    return "elsewhere"


def _on_device(tensor: torch.Tensor) -> bool:
    return tensor.device.type not in ("cpu", "meta")


def _wait_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> str | None:
    """Return how an operator makes the host wait, or None."""
    if func in _WAITING:
        return _WAITING[func] if _on_device(args[0]) else None
    if func in _INDEXING:
        given = [index for index in args[1] if index is not None]
        if any(index.dtype == torch.bool for index in given):
            return "boolean mask"
        return "index on the CPU" if any(not _on_device(index) for index in given) else None
    if func is aten.lift_fresh.default:  # torch.tensor(..., device="cuda") has copied numbers from the host
        return f"copy cpu to {result.device.type}"
    if func is aten._to_copy.default:
        return _wait_of_copy(args[0], result, kwargs.get("non_blocking", False))
    if func is aten.copy_.default:
        return _wait_of_copy(args[1], args[0], kwargs.get("non_blocking", args[2] if len(args) > 2 else False))
    return None


def _wait_of_copy(source: torch.Tensor, target: torch.Tensor, non_blocking: bool) -> str | None:
    """A copy between host and device waits, unless it is non-blocking and does not end in pageable memory.

    From pageable memory the driver first makes a copy of its own, for which the device is not needed.
    """
    if source.device.type == target.device.type:
        return None
    to_host = target.device.type == "cpu"
    if non_blocking and not (to_host and not target.is_pinned()):
        return None
    return f"copy {source.device.type} to {target.device.type}"
