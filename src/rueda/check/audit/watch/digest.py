"""Digests of tensors and of states of random generators: a few bytes that two workers can compare."""

from __future__ import annotations

import hashlib
import random
import sys
import zlib
from typing import Any

import torch
from torch import Tensor

from rueda.data.nest import tensors

VALUES = 256
"""values of a row or a parameter that a digest takes at most, evenly spaced"""


def some(tensor: Tensor, count: int = VALUES) -> Tensor:
    """Return evenly spaced values of a tensor, on the CPU."""
    flat = tensor.detach().reshape(-1)
    step = max(1, flat.numel() // count)
    return flat[::step][:count].cpu()


def digest(tensor: Tensor) -> int:
    """Return a checksum of evenly spaced values of a tensor."""
    values = some(tensor).contiguous()
    if values.dtype == torch.bfloat16:
        values = values.float()
    return zlib.crc32(values.numpy().tobytes())


def num_rows(batch: Any) -> int:
    """Return the number of examples of a batch: the length of its first tensor; 0 if it has none."""
    return next((len(leaf) for leaf in tensors(batch) if leaf.dim()), 0)


def rows(batch: Any, *, whole_numbers: bool = False) -> list[int]:
    """Return a digest of each example of a batch.

    Args:
        batch: the batch.
        whole_numbers: of labels and other whole numbers alone, which no augmentation changes.
    """
    found = [
        leaf for leaf in tensors(batch)
        if leaf.dim() and not (whole_numbers and (leaf.is_floating_point() or leaf.is_complex()))
    ]  # fmt: skip
    if not found or len({len(leaf) for leaf in found}) > 1:
        return []
    return [zlib.crc32(repr([digest(leaf[i]) for leaf in found]).encode()) for i in range(len(found[0]))]


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
