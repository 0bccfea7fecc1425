"""A collective in flight: what one rank submits, and what all ranks must agree on.

Ranks agree on the *signature*: kind, operation, root, factors, device, types and shapes. What may differ between them
(how many rows each gathers, what it sends to whom) travels beside it as ``extra``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

# Kinds of collectives.
ALLREDUCE, ALLGATHER, BROADCAST, ALLTOALL, REDUCESCATTER, BARRIER, ADD_SET, REMOVE_SET, STUCK = range(9)
KINDS = (
    "allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "barrier", "add_process_set",
    "remove_process_set", "step",
)  # fmt: skip

_ROWS_MAY_DIFFER = (ALLGATHER, ALLTOALL)

# Operations, numbered as Horovod numbers them.
AVERAGE, SUM, ADASUM, MIN, MAX, PRODUCT = range(6)
OPERATIONS = ("Average", "Sum", "Adasum", "Min", "Max", "Product")

Key: TypeAlias = tuple[int, str]  # process set and name, by which a collective is found


class Signature(NamedTuple):
    """What all ranks must agree on, in plain values, since it travels.

    Args:
        kind: of collective, such as ``ALLREDUCE``.
        operation: of a reduction, such as ``SUM``.
        root: the rank that a broadcast comes from.
        prescale: what each rank multiplies by before a reduction.
        postscale: what the result of a reduction is multiplied by.
        device: ``cpu`` or ``cuda``.
        types: of the tensors, such as ``float32``.
        shapes: of the tensors; -1 for a length that may differ between the ranks.
        ranks: of the process set that is added or removed.
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


# One for each submission: by the constructor of tuples itself, which takes half the time of the named tuple's own.
_signature: Callable[[tuple[Any, ...]], Signature] = partial(tuple.__new__, Signature)

TYPE_NAMES = {
    value: str(value).removeprefix("torch.")
    for value in vars(torch).values()
    if isinstance(value, torch.dtype)
}  # fmt: skip
TYPES = {name: value for value, name in TYPE_NAMES.items()}


@dataclass(slots=True, eq=False, repr=False)
class Entry:
    """One submission of this rank, from :meth:`Engine.submit` until its result or error is there.

    ``tensors`` are contiguous; ``outputs`` are where the result shall go (None: into new tensors). A grouped
    collective is one entry with several tensors: it is negotiated and run as a whole.
    """

    process_set: int
    name: str
    signature: Signature
    tensors: list[Tensor]
    outputs: list[Tensor] | None = None
    extra: Any = None
    payload: bytes | None = None
    event: Any = None  # on a GPU: when the tensors, and later the results, are there
    done: bool = False
    result: Any = None
    error: Exception | None = None

    @property
    def key(self) -> Key:
        """What it is found by."""
        return self.process_set, self.name

    def __repr__(self) -> str:
        return f"<{KINDS[self.signature.kind]} {self.name!r} {'done' if self.done else 'in flight'}>"


def sign(
    kind: int,
    tensors: Sequence[Tensor] = (),
    *,
    operation: int = SUM,
    root: int = 0,
    prescale: float = 1.0,
    postscale: float = 1.0,
    ranks: tuple[int, ...] = (),
) -> Signature:
    """Write the signature of a collective; gathered and exchanged tensors may differ in their first dimension.

    >>> sign(ALLREDUCE, [torch.ones(2, 3)]).shapes, sign(ALLGATHER, [torch.ones(2, 3)]).shapes
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


def raw_bytes(tensors: Sequence[Tensor]) -> bytes:
    """Copy the memory of contiguous CPU tensors, one after the other.

    >>> raw_bytes([torch.tensor([1, 2], dtype=torch.int8), torch.tensor(True)])
    b'\\x01\\x02\\x01'
    """
    return _memory(tensors[0]) if len(tensors) == 1 else b"".join([_memory(tensor) for tensor in tensors])


def from_bytes(data: bytes | bytearray, dtype: torch.dtype) -> Tensor:
    """Make a flat tensor of bytes that :func:`raw_bytes` wrote."""
    if not data:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype)


def _memory(tensor: Tensor) -> bytes:
    if tensor.dtype == torch.bfloat16:  # numpy has none
        tensor = tensor.view(torch.int16)
    return tensor.numpy().tobytes()


def describe_mismatch(name: str, signatures: dict[int, Signature]) -> str:
    """Say which ranks differ in what; the sentence is the same on every rank.

    >>> signatures = {0: sign(ALLREDUCE, [torch.ones(2)]), 1: sign(ALLREDUCE, [torch.ones(3)])}
    >>> print(describe_mismatch("x", signatures))
    tensor 'x': expected the same on all ranks, got shape [2] on rank 0, shape [3] on rank 1; submit it alike ...
    """
    parts = []
    for field, values in _fields(signatures):
        by_value: dict[str, list[int]] = {}
        for rank, value in values.items():
            by_value.setdefault(value, []).append(rank)
        if len(by_value) > 1:
            parts += [f"{field} {value} on {_ranks(ranks)}" for value, ranks in by_value.items()]
            break  # the first difference explains those that follow from it
    return (
        f"tensor {name!r}: expected the same on all ranks, got {', '.join(parts)}; "
        "submit it alike everywhere, or under different names"
    )


def _fields(signatures: dict[int, Signature]) -> list[tuple[str, dict[int, str]]]:
    def column(write: Callable[[Signature], str]) -> dict[int, str]:
        return {rank: write(signature) for rank, signature in sorted(signatures.items())}

    return [
        ("collective", column(lambda s: KINDS[s.kind])),
        ("operation", column(lambda s: OPERATIONS[s.operation])),
        ("number of tensors", column(lambda s: str(len(s.shapes)))),
        ("type", column(lambda s: _listed(s.types))),
        ("shape", column(lambda s: _listed([_shape(shape) for shape in s.shapes]))),
        ("ranks", column(lambda s: str(list(s.ranks)))),
        ("root rank", column(lambda s: str(s.root))),
        ("device", column(lambda s: s.device)),
        ("prescale factor", column(lambda s: repr(s.prescale))),
        ("postscale factor", column(lambda s: repr(s.postscale))),
    ]


def _shape(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join("any" if length < 0 else str(length) for length in shape) + "]"


def _listed(values: Sequence[str]) -> str:
    return values[0] if len(values) == 1 else "(" + ", ".join(values) + ")"


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (" ..." if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
