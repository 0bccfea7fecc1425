"""Digests of tensors and of states of random generators: a few bytes that two workers can compare."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import random
import sys
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

VALUES = 256
"""values of a row or a parameter that a digest takes at most, evenly spaced"""


def some(tensor: Tensor, count: int = VALUES) -> Tensor:
    """Return evenly spaced values of a tensor, on the CPU."""
    flat = tensor.detach().reshape(-1)
    step = max(1, flat.numel() // count)
    return flat[::step][:count].cpu()


def digest(tensor: Tensor) -> int:
    """Return a checksum of evenly spaced values of a tensor."""
    values = some(tensor).contiguous().view(torch.uint8)  # bytes, since NumPy lacks bfloat16 and others
    return zlib.crc32(values.numpy().tobytes())


def doubles(values: Tensor) -> Tensor:
    """Return values in double precision; complex ones as pairs of real and imaginary parts."""
    return (torch.view_as_real(values).reshape(-1) if values.is_complex() else values).double()


def is_plain(tensor: Tensor) -> bool:
    """Return whether the values of a tensor can be read: it is not sparse, nested, quantised or without memory."""
    is_special = tensor.is_nested or tensor.is_quantized or tensor.is_meta
    return tensor.layout is torch.strided and not is_special


def leaves(batch: Any) -> Iterator[Tensor]:
    """Iterate over the tensors of a batch: in tuples, lists, dictionaries and data classes.

    Other sequences are left alone, since reading one may compute its items.
    """
    if isinstance(batch, Tensor):
        if is_plain(batch):
            yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from leaves(value)
    elif isinstance(batch, (tuple, list)):
        for value in batch:
            yield from leaves(value)
    elif dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        for field in dataclasses.fields(batch):
            yield from leaves(getattr(batch, field.name, None))


def num_rows(batch: Any) -> int:
    """Return the number of examples of a batch: the length of its first tensor; 0 if it has none."""
    return next((len(leaf) for leaf in leaves(batch) if leaf.dim()), 0)


def rows(batch: Any, *, whole_numbers: bool = False) -> list[int]:
    """Return a digest of each example of a batch.

    Args:
        batch: the batch.
        whole_numbers: of labels and other whole numbers alone, which no augmentation changes.
    """
    found = [
        leaf for leaf in leaves(batch)
        if leaf.dim() and not (whole_numbers and (leaf.is_floating_point() or leaf.is_complex()))
    ]  # fmt: skip
    if not found or len({len(leaf) for leaf in found}) > 1:
        return []
    parts = [_bytes_of_rows(leaf) for leaf in found]
    return [functools.reduce(lambda value, part: zlib.crc32(part[i], value), parts, 0) for i in range(len(found[0]))]


def _bytes_of_rows(leaf: Tensor) -> Any:
    """Return evenly spaced values of each row as bytes: all rows at once, since a call of torch takes microseconds."""
    flat = leaf.detach().flatten(1) if leaf.dim() > 1 else leaf.detach().unsqueeze(1)  # (rows, values)
    step = max(1, flat.shape[1] // VALUES)
    return flat[:, ::step][:, :VALUES].cpu().contiguous().view(torch.uint8).numpy()


def generators() -> dict[str, str]:
    """Return a digest of the state of each global generator: torch's, Python's and NumPy's."""
    states = {"torch": torch.get_rng_state().numpy().tobytes(), "random": repr(random.getstate()).encode()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        _, keys, position, *_ = numpy.random.get_state()
        states["numpy"] = keys.tobytes() + str(position).encode()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = torch.cuda.get_rng_state().numpy().tobytes()
    return {name: hashlib.blake2b(state, digest_size=8).hexdigest() for name, state in states.items()}
