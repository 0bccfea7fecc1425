"""Count the bytes that collectives carry, by the kind of collective: what a training really sends.

Every collective of torch.distributed is an operator of torch's dispatcher, whoever calls it: a script
(``dist.all_reduce``), DistributedDataParallel's reducer in C++, FSDP, DTensor (the *functional* collectives) or a
pipeline's sends. A dispatch mode sees them all, with their tensors. On N ranks, a tensor of S bytes costs each of them,
by the algorithms that need the fewest bytes (Patarasuk & Yuan 2009; Thakur et al. 2005):

===================  ======================================  =========================
kind                 S is                                    bytes that a rank sends
===================  ======================================  =========================
``all-reduce``       the tensor                              2 (N - 1) / N S
``all-gather``       what all ranks have together            (N - 1) / N S
``reduce-scatter``   what one rank has before it             (N - 1) / N S
``all-to-all``       what one rank has                       (N - 1) / N S
``broadcast``        the tensor                              (N - 1) / N S, on average
``reduce``           the tensor                              (N - 1) / N S, on average
``gather``           the tensor of one rank                  (N - 1) / N S, on average
``scatter``          the tensor of one rank                  (N - 1) / N S, on average
``send``             the tensor                              S
``barrier``          nothing                                 0
===================  ======================================  =========================

A group of one rank sends nothing. What a library adds (headers, chunks, a tree instead of a ring) is not counted.
``torch.distributed.tensor.debug.CommDebugMode`` counts the calls in the same way, without the bytes.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from rueda.data.nest import num_bytes
from rueda.records.parallelism import sent_bytes


class _Operator(NamedTuple):
    """How an operator is counted."""

    kind: str
    argument: int
    """the position of the argument whose tensors count"""
    times_size: bool = False
    """whether the argument is one rank's part, of which there are as many as ranks"""


_OPERATORS = {
    "c10d.allreduce_": _Operator("all-reduce", 0),
    "c10d.allreduce_coalesced_": _Operator("all-reduce", 0),
    "c10d.allgather_": _Operator("all-gather", 1, times_size=True),
    "c10d._allgather_base_": _Operator("all-gather", 1, times_size=True),
    "c10d.allgather_coalesced_": _Operator("all-gather", 1, times_size=True),
    "c10d.allgather_into_tensor_coalesced_": _Operator("all-gather", 1, times_size=True),
    "c10d.reduce_scatter_": _Operator("reduce-scatter", 1),
    "c10d._reduce_scatter_base_": _Operator("reduce-scatter", 1),
    "c10d.reduce_scatter_tensor_coalesced_": _Operator("reduce-scatter", 1),
    "c10d.alltoall_": _Operator("all-to-all", 1),
    "c10d.alltoall_base_": _Operator("all-to-all", 1),
    "c10d.broadcast_": _Operator("broadcast", 0),
    "c10d.reduce_": _Operator("reduce", 0),
    "c10d.gather_": _Operator("gather", 1),
    "c10d.scatter_": _Operator("scatter", 0),
    "c10d.send": _Operator("send", 0),
    "c10d.barrier": _Operator("barrier", -1),
    "_c10d_functional.all_reduce": _Operator("all-reduce", 0),
    "_c10d_functional.all_reduce_": _Operator("all-reduce", 0),
    "_c10d_functional.all_reduce_coalesced": _Operator("all-reduce", 0),
    "_c10d_functional.all_reduce_coalesced_": _Operator("all-reduce", 0),
    "_c10d_functional.all_gather_into_tensor": _Operator("all-gather", 0, times_size=True),
    "_c10d_functional.all_gather_into_tensor_out": _Operator("all-gather", 0, times_size=True),
    "_c10d_functional.all_gather_into_tensor_coalesced": _Operator("all-gather", 0, times_size=True),
    "_c10d_functional.reduce_scatter_tensor": _Operator("reduce-scatter", 0),
    "_c10d_functional.reduce_scatter_tensor_out": _Operator("reduce-scatter", 0),
    "_c10d_functional.reduce_scatter_tensor_coalesced": _Operator("reduce-scatter", 0),
    "_c10d_functional.all_to_all_single": _Operator("all-to-all", 0),
    "_c10d_functional.broadcast": _Operator("broadcast", 0),
    "_c10d_functional.broadcast_": _Operator("broadcast", 0),
}


class Carried(NamedTuple):
    """One kind of collective in one group of ranks."""

    kind: str
    """``all-reduce``, ``all-gather``, ``reduce-scatter``, ``send`` ..."""
    ranks: tuple[int, ...]
    """the ranks of the group"""
    functional: bool
    """whether a functional collective carried it, as DTensor's do"""


class WireBytes(TorchDispatchMode):
    """Counts the collectives that this rank takes part in while the block runs.

    ::

        with WireBytes() as wire:
            training.step()
        wire.num_bytes("all-reduce")    # of the tensors
        wire.sent("all-reduce")         # that this rank sends for them

    It sees what is called in this thread, and what autograd calls for it.

    Args:
        at_least: leave out collectives of fewer bytes, such as those of counts and losses.
    """

    def __init__(self, *, at_least: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._at_least = at_least
        self.calls: Counter[Carried] = Counter()
        """how often each kind was called in each group"""
        self.tensors: Counter[Carried] = Counter()
        """bytes of the tensors of each kind in each group: S in the table of :mod:`rueda.measure.wire_bytes`"""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Count an operator if it is a collective, and call it."""
        if func.namespace in ("c10d", "_c10d_functional"):
            name = f"{func.namespace}.{func._schema.name.rpartition('::')[2]}"
            operator = _OPERATORS.get(name)
            if operator is not None:
                self._count(operator, args, functional=func.namespace == "_c10d_functional")
        return func(*args, **(kwargs or {}))

    def _count(self, operator: _Operator, args: tuple[Any, ...], *, functional: bool) -> None:
        group = _group_of(args)
        key = Carried(operator.kind, tuple(dist.get_process_group_ranks(group)), functional)
        size = 0
        if operator.argument >= 0:
            own = num_bytes(args[operator.argument])
            size = own * (group.size() if operator.times_size else 1)
        if size < self._at_least:
            return
        self.calls[key] += 1
        self.tensors[key] += size

    def num_calls(self, kind: str) -> int:
        """Return how many collectives of a kind there were."""
        return sum(count for key, count in self.calls.items() if key.kind == kind)

    def num_bytes(self, kind: str) -> int:
        """Return the bytes of the tensors of a kind."""
        return sum(count for key, count in self.tensors.items() if key.kind == kind)

    def sent(self, kind: str | None = None) -> float:
        """Return the bytes that this rank sends for a kind, by default for all of them."""
        return sum(
            sent_bytes(key.kind, count, len(key.ranks))
            for key, count in self.tensors.items()
            if kind in (None, key.kind)
        )


def _group_of(args: tuple[Any, ...]) -> dist.ProcessGroup:
    """Return the process group among an operator's arguments: an object, or for functional collectives its name."""
    for value in args:
        if isinstance(value, torch.ScriptObject) and "ProcessGroup" in str(value._type()):
            return dist.ProcessGroup.unbox(value)
    name = [value for value in args if isinstance(value, str)][-1]
    return dist.distributed_c10d._resolve_process_group(name)  # type: ignore[attr-defined, arg-type]
