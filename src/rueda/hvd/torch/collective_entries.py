"""The entries that collectives submit to the engine: arguments are checked, and tensors get a name and a signature.

Both the functions that scripts call (:mod:`rueda.hvd.torch.mpi_ops`) and their backward passes
(:mod:`rueda.hvd.torch.passes`) make their entries here.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from torch import Tensor

from rueda.hvd.common.exceptions import OperationError
from rueda.hvd.common.process_sets import ProcessSet
from rueda.hvd.core import entries as kinds
from rueda.hvd.core import lifecycle
from rueda.hvd.core.entries import ADASUM, SUM, Entry, signature_of

first = itemgetter(0)  # takes the result of a collective on one tensor out of its list of results


class Reduction(NamedTuple):
    """The process set of a collective and, for one that reduces, the operation and its factors."""

    process_set: ProcessSet
    operation: int = SUM
    prescale: float = 1.0
    postscale: float = 1.0


def make_entry(
    kind: int,
    tensors: Sequence[Tensor],
    name: str | None,
    reduction: Reduction,
    *,
    in_place: bool = False,
    root: int = 0,
    extra: Any = None,
) -> Entry:
    """Make an entry for the running engine.

    Args:
        kind: the kind of collective, such as ``ALLREDUCE``.
        tensors: this rank's tensors; they are sent as one collective.
        name: the name by which ranks match the collective; None: one is made from the order of submission.
        reduction: the process set, operation and factors.
        in_place: write the results into ``tensors`` instead of new tensors.
        root: the rank that a broadcast sends from.
        extra: what may differ between the ranks, such as the number of rows of each.
    """
    engine = lifecycle.engine()
    process_set, operation, prescale, postscale = reduction
    number = process_set.process_set_id
    if number is None or engine.rank not in engine.sets.get(number, ()):
        process_set.rank()  # raises the error that explains what is wrong
        raise AssertionError
    # Exactly str, since marshal does not support subclasses such as numpy.str_.
    full_name = str(name) if name is not None else engine.tensor_queue.default_name(number, kind)
    ready = [(tensor.detach() if tensor.requires_grad else tensor).contiguous() for tensor in tensors]
    signature = signature_of(
        kind, ready, operation=operation, root=root, prescale=float(prescale), postscale=float(postscale)
    )
    return Entry(number, full_name, signature, ready, list(tensors) if in_place else None, extra)


def suffixed(name: str | None, suffix: str) -> str | None:
    """Return the name of a collective that belongs to another one; both are unnamed if ``name`` is None."""
    return None if name is None else f"{name}.{suffix}"


def allreduce_entry(
    tensors: Sequence[Tensor], name: str | None, reduction: Reduction, *, in_place: bool = False
) -> Entry:
    """Make the entry of an all-reduce."""
    if reduction.operation == ADASUM and not all(tensor.is_floating_point() for tensor in tensors):
        raise OperationError(f"allreduce {name or ''}: expected floating-point tensors for Adasum; convert them first")
    return make_entry(kinds.ALLREDUCE, tensors, name, reduction, in_place=in_place)


def allgather_entry(tensors: Sequence[Tensor], name: str | None, process_set: ProcessSet) -> Entry:
    """Make the entry of an all-gather; a scalar counts as one row."""
    rows = [tensor.reshape(1) if tensor.dim() == 0 else tensor for tensor in tensors]
    return make_entry(kinds.ALLGATHER, rows, name, Reduction(process_set), extra=[row.shape[0] for row in rows])


def broadcast_entry(
    tensor: Tensor, root: int, name: str | None, process_set: ProcessSet, *, in_place: bool = False
) -> Entry:
    """Make the entry of a broadcast from ``root``, a rank among all workers."""
    members = process_set.members()
    if root not in members:
        raise ValueError(f"broadcast {name or ''}: expected a root rank among {list(members)}, got {root}; choose one")
    return make_entry(kinds.BROADCAST, [tensor], name, Reduction(process_set), in_place=in_place, root=int(root))


def alltoall_entry(
    tensor: Tensor, splits: Tensor | Sequence[int] | None, name: str | None, process_set: ProcessSet
) -> Entry:
    """Make the entry of an all-to-all; without ``splits`` every rank gets the same number of rows."""
    num_ranks = process_set.size()
    if tensor.dim() == 0:
        raise ValueError(f"alltoall {name or ''}: expected a tensor of at least one dimension, got a scalar")
    rows = tensor.shape[0]
    if splits is None:
        if rows % num_ranks:
            raise ValueError(
                f"alltoall {name or ''}: expected rows that {num_ranks} ranks can divide, got {rows}; give splits"
            )
        splits = [rows // num_ranks] * num_ranks
    if isinstance(splits, Tensor):
        if splits.is_floating_point() or splits.is_complex():
            raise ValueError(f"alltoall {name or ''}: expected integer splits, got {splits.dtype}; convert them")
        splits = splits.tolist()
    parts = [int(part) for part in splits]
    if len(parts) != num_ranks or min(parts) < 0 or sum(parts) != rows:
        raise ValueError(
            f"alltoall {name or ''}: expected {num_ranks} splits that sum to {rows} rows, got {parts}; correct them"
        )
    return make_entry(kinds.ALLTOALL, [tensor], name, Reduction(process_set), extra=parts)


def reducescatter_entry(tensors: Sequence[Tensor], name: str | None, reduction: Reduction) -> Entry:
    """Make the entry of a reduce-scatter."""
    op = reduction.operation
    if op == ADASUM or op not in range(6):
        raise OperationError(f"reducescatter {name or ''}: expected op Average, Sum, Min, Max or Product, got {op!r}")
    if any(tensor.dim() == 0 for tensor in tensors):
        raise ValueError(f"reducescatter {name or ''}: expected a tensor of at least one dimension, got a scalar")
    return make_entry(kinds.REDUCESCATTER, tensors, name, reduction)


def run(entry: Entry) -> list[Tensor]:
    """Submit an entry, block until it has finished, and return its results."""
    results: list[Tensor] = lifecycle.engine().run(entry)
    return results
