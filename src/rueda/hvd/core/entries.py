"""Entries and signatures: a collective as this rank submits it, and the part of it that all ranks must agree on.

All ranks must submit a collective with the same *signature*: kind, operation, root rank, scale factors, device, dtypes
and shapes. What may differ between ranks, such as the number of rows that each rank contributes to an all-gather, is
sent beside the signature as ``extra``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

# Kinds of collectives. A STALL_REPORT runs nothing: it tells the coordinator that an unnegotiated all-reduce is late.
ALLREDUCE, ALLGATHER, BROADCAST, ALLTOALL, REDUCESCATTER, BARRIER, JOIN, ADD_SET, REMOVE_SET, STALL_REPORT = range(10)
KINDS = (
    "allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "barrier", "join", "add_process_set",
    "remove_process_set", "step",
)  # fmt: skip

_ROWS_MAY_DIFFER = (ALLGATHER, ALLTOALL)

# Operations, numbered as in Horovod.
AVERAGE, SUM, ADASUM, MIN, MAX, PRODUCT = range(6)
OPERATIONS = ("Average", "Sum", "Adasum", "Min", "Max", "Product")

Key: TypeAlias = tuple[int, int, str]  # process set, kind and name, which identify a collective
JOIN_SET = -1  # the process set of joins: all ranks, but no tensor, so that no tensor can have the name of a join


class Signature(NamedTuple):
    """The properties of a collective on which all ranks must agree, as plain values that can be serialised.

    Args:
        kind: the collective, such as ``ALLREDUCE``.
        operation: the operation of a reduction, such as ``SUM``.
        root: the rank from which a broadcast sends.
        prescale: the factor that each rank applies before a reduction.
        postscale: the factor that is applied to the result of a reduction.
        device: ``cpu`` or ``cuda``.
        types: the dtypes of the tensors, such as ``float32``.
        shapes: the shapes of the tensors; -1 stands for a length that may differ between ranks.
        ranks: the ranks of the process set that is added or removed.
    """

    kind: int
    operation: int
    root: int
    prescale: float
    postscale: float
    device: str
    types: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    ranks: tuple[int, ...] = ()


# Every submission makes a signature; tuple.__new__ takes half the time of the named tuple's own constructor.
_signature: Callable[[tuple[Any, ...]], Signature] = partial(tuple.__new__, Signature)

TYPE_NAMES = {
    value: str(value).removeprefix("torch.")
    for value in vars(torch).values()
    if isinstance(value, torch.dtype)
}  # fmt: skip


@dataclass(slots=True, eq=False, repr=False)
class Entry:
    """A collective that this rank has submitted, from :meth:`Engine.submit` until it has a result or an error.

    ``tensors`` are contiguous; results are written to ``outputs``, or to new tensors if that is None. A grouped
    collective is one entry with several tensors: it is negotiated and run as a unit.
    """

    process_set: int
    name: str
    signature: Signature
    tensors: list[Tensor]
    outputs: list[Tensor] | None = None
    extra: Any = None
    payload: bytes | None = None
    event: Any = None  # ReadyEvent after which the tensors, and later the results, are ready; None on a CPU
    since: float = 0.0  # when it was submitted, by time.monotonic
    done: bool = False
    result: Any = None
    error: Exception | None = None

    @property
    def key(self) -> Key:
        """The process set, the kind and the name, which identify the collective."""
        return self.process_set, self.signature.kind, self.name

    def __repr__(self) -> str:
        return f"<{KINDS[self.signature.kind]} {self.name!r} {'done' if self.done else 'in flight'}>"


def signature_of(
    kind: int,
    tensors: Sequence[Tensor] = (),
    *,
    operation: int = SUM,
    root: int = 0,
    prescale: float = 1.0,
    postscale: float = 1.0,
    ranks: tuple[int, ...] = (),
) -> Signature:
    """Return the signature of a collective; the fields are those of :class:`Signature`.

    The tensors of an all-gather and of an all-to-all may differ between ranks in their first dimension.

    >>> signature_of(ALLREDUCE, [torch.ones(2, 3)]).shapes, signature_of(ALLGATHER, [torch.ones(2, 3)]).shapes
    (((2, 3),), ((-1, 3),))
    """
    device = "cpu" if not tensors or tensors[0].is_cpu else tensors[0].device.type
    types: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    if len(tensors) == 1:  # the usual case
        (tensor,) = tensors
        types, shapes = (TYPE_NAMES[tensor.dtype],), (tuple(tensor.shape),)
    else:
        types = tuple([TYPE_NAMES[tensor.dtype] for tensor in tensors])
        shapes = tuple([tuple(tensor.shape) for tensor in tensors])
    if kind in _ROWS_MAY_DIFFER:
        shapes = tuple([(-1, *shape[1:]) for shape in shapes])
    return _signature((kind, operation, root, prescale, postscale, device, types, shapes, ranks))


def to_bytes(tensors: Sequence[Tensor]) -> bytes:
    """Copy the memory of contiguous CPU tensors into one bytes object.

    >>> to_bytes([torch.tensor([1, 2], dtype=torch.int8), torch.tensor(True)])
    b'\\x01\\x02\\x01'
    """
    return _tensor_bytes(tensors[0]) if len(tensors) == 1 else b"".join([_tensor_bytes(tensor) for tensor in tensors])


def from_bytes(data: bytes | bytearray, dtype: torch.dtype) -> Tensor:
    """Make a one-dimensional tensor from bytes that :func:`to_bytes` returned."""
    if not data:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype)


def _tensor_bytes(tensor: Tensor) -> bytes:
    if tensor.dtype == torch.bfloat16:  # NumPy has no bfloat16
        tensor = tensor.view(torch.int16)
    return tensor.numpy().tobytes()


_FIELDS: dict[str, Callable[[Signature], str]] = {
    "collective": lambda signature: KINDS[signature.kind],
    "operation": lambda signature: OPERATIONS[signature.operation],
    "number of tensors": lambda signature: str(len(signature.shapes)),
    "type": lambda signature: _listed(signature.types),
    "shape": lambda signature: _listed([str([*shape]).replace("-1", "any") for shape in signature.shapes]),
    "ranks": lambda signature: str([*signature.ranks]),
    "root rank": lambda signature: str(signature.root),
    "device": lambda signature: signature.device,
    "prescale factor": lambda signature: repr(signature.prescale),
    "postscale factor": lambda signature: repr(signature.postscale),
}


def describe_mismatch(name: str, signatures: dict[int, Signature]) -> str:
    """Say in which property the signatures of a collective differ, and on which ranks.

    >>> signatures = {0: signature_of(ALLREDUCE, [torch.ones(2)]), 1: signature_of(ALLREDUCE, [torch.ones(3)])}
    >>> print(describe_mismatch("x", signatures))
    tensor 'x': expected the same on all ranks, got shape [2] on rank 0, shape [3] on rank 1; submit the same ...
    """
    parts: list[str] = []
    for field, write in _FIELDS.items():
        by_value: dict[str, list[int]] = {}
        for rank, signature in sorted(signatures.items()):
            by_value.setdefault(write(signature), []).append(rank)
        if len(by_value) > 1:
            parts = [f"{field} {value} on {_ranks(ranks)}" for value, ranks in by_value.items()]
            break  # later differences may only follow from this one
    return (
        f"tensor {name!r}: expected the same on all ranks, got {', '.join(parts)}; "
        "submit the same on all ranks, or use different names"
    )


def _listed(values: Sequence[str]) -> str:
    return values[0] if len(values) == 1 else "(" + ", ".join(values) + ")"


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (" ..." if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
