"""How a collective on tensors becomes an entry of the engine: checked, named and signed; or is run at once.

Both stand on this: what scripts call (:mod:`rueda.hvd.torch.mpi_ops`), and what flows back through it
(:mod:`rueda.hvd.torch.gradients`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from rueda.hvd.common.process_sets import ProcessSet
from rueda.hvd.core import entries as kinds
from rueda.hvd.core import life
from rueda.hvd.core.entries import ADASUM, SUM, Entry, sign


class Reduction(NamedTuple):
    """Among whom a collective runs and, of one that reduces, how."""

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
    outputs: list[Tensor] | None = None,
    root: int = 0,
    extra: Any = None,
) -> Entry:
    """Make an entry of the running engine; without a name it gets one by the order of submission."""
    engine = life.engine()
    process_set, operation, prescale, postscale = reduction
    number = process_set.process_set_id
    if number is None or engine.rank not in engine.sets.get(number, ()):
        process_set.rank()  # says what is wrong
        raise AssertionError
    full_name = name if name is not None else engine.ledger.name(number, kind)
    ready = [(tensor.detach() if tensor.requires_grad else tensor).contiguous() for tensor in tensors]
    signature = sign(kind, ready, operation=operation, root=root, prescale=float(prescale), postscale=float(postscale))
    return Entry(number, full_name, signature, ready, outputs, extra)


def suffixed(name: str | None, suffix: str) -> str | None:
    """Name a collective after another; what follows an unnamed one is unnamed too."""
    return None if name is None else f"{name}.{suffix}"


# One for each kind.


def reducing(
    tensors: Sequence[Tensor], name: str | None, reduction: Reduction, outputs: list[Tensor] | None = None
) -> Entry:
    """Make an entry of an allreduce, into ``outputs`` or (None) into new tensors."""
    if reduction.operation == ADASUM and not all(tensor.is_floating_point() for tensor in tensors):
        raise ValueError(f"allreduce {name or ''}: expected floating-point tensors for Adasum; convert them first")
    return make_entry(kinds.ALLREDUCE, tensors, name, reduction, outputs=outputs)


def gathering(tensors: Sequence[Tensor], name: str | None, process_set: ProcessSet) -> Entry:
    """Make an entry of an allgather; a scalar is a row."""
    rows = [tensor.reshape(1) if tensor.dim() == 0 else tensor for tensor in tensors]
    return make_entry(kinds.ALLGATHER, rows, name, Reduction(process_set), extra=[row.shape[0] for row in rows])


def broadcasting(
    tensor: Tensor, outputs: list[Tensor] | None, root: int, name: str | None, process_set: ProcessSet
) -> Entry:
    """Make an entry of a broadcast from ``root``, a number among all workers."""
    if root not in process_set.members():
        raise ValueError(
            f"broadcast {name or ''}: expected a root rank among {list(process_set.members())}, got {root}; choose one"
        )
    return make_entry(kinds.BROADCAST, [tensor], name, Reduction(process_set), outputs=outputs, root=root)


def exchanging(
    tensor: Tensor, splits: Tensor | Sequence[int] | None, name: str | None, process_set: ProcessSet
) -> Entry:
    """Make an entry of an alltoall; without ``splits`` every rank gets the same number of rows."""
    num_ranks = process_set.size()
    if tensor.dim() == 0:
        raise ValueError(f"alltoall {name or ''}: expected a tensor of at least one dimension, got a scalar")
    rows = tensor.shape[0]
    if splits is None:
        if rows % num_ranks:
            raise ValueError(
                f"alltoall {name or ''}: expected rows that {num_ranks} ranks can divide, got {rows}; give splits"
            )
        parts = [rows // num_ranks] * num_ranks
    else:
        parts = [int(part) for part in (splits.tolist() if isinstance(splits, Tensor) else splits)]
    if len(parts) != num_ranks or min(parts) < 0 or sum(parts) != rows:
        raise ValueError(
            f"alltoall {name or ''}: expected {num_ranks} splits that sum to {rows} rows, got {parts}; correct them"
        )
    return make_entry(kinds.ALLTOALL, [tensor], name, Reduction(process_set), extra=parts)


def scattering(tensors: Sequence[Tensor], name: str | None, reduction: Reduction) -> Entry:
    """Make an entry of a reducescatter."""
    op = reduction.operation
    if op == ADASUM or op not in range(6):
        raise ValueError(f"reducescatter {name or ''}: expected op Average, Sum, Min, Max or Product, got {op!r}")
    if any(tensor.dim() == 0 for tensor in tensors):
        raise ValueError(f"reducescatter {name or ''}: expected a tensor of at least one dimension, got a scalar")
    return make_entry(kinds.REDUCESCATTER, tensors, name, reduction)


def run(entry: Entry) -> list[Tensor]:
    """Run an entry now, and give its results."""
    results: list[Tensor] = life.engine().run(entry)
    return results
