"""Examples, read once into memory: from any loader of batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from rueda.errors import ExamineError

Inputs = Tensor | tuple[Tensor, ...]
"""[N, ...], or several such tensors for a model that takes several"""


def take(inputs: Inputs, start: int, stop: int) -> Inputs:
    """Give the examples from ``start`` to ``stop``."""
    return tuple(part[start:stop] for part in inputs) if isinstance(inputs, tuple) else inputs[start:stop]


def read_loader(loader: Iterable[Any], limit: int | None = None) -> tuple[Inputs, Tensor]:
    """Read ``(inputs, targets)`` batches, at most ``limit`` examples, and join them.

    >>> inputs, targets = read_loader([(torch.zeros(2, 3), torch.ones(2)), (torch.zeros(2, 3), torch.ones(2))], 3)
    >>> list(inputs.shape), list(targets.shape)
    ([3, 3], [3])
    """
    parts: list[Inputs] = []
    targets: list[Tensor] = []
    num_read = 0
    for batch in loader:
        if not isinstance(batch, (list, tuple)) or len(batch) < 2 or not isinstance(batch[1], Tensor):
            raise ExamineError(
                "a batch of the loader",
                expected="(inputs, targets)",
                got=type(batch).__name__,
                do="wrap the loader in a generator that yields both",
            )
        parts.append(tuple(batch[0]) if isinstance(batch[0], (list, tuple)) else batch[0])
        targets.append(batch[1])
        num_read += len(batch[1])
        if limit is not None and num_read >= limit:
            break
    if num_read == 0:
        raise ExamineError(
            "the loader",
            expected="at least one batch of (inputs, targets)",
            got="none",
            do="pass a loader that is not empty or used up",
        )
    first = parts[0]
    joined: Inputs
    if isinstance(first, tuple):
        joined = tuple(torch.cat([part[index] for part in parts]) for index in range(len(first)))
    else:
        joined = torch.cat([part for part in parts if isinstance(part, Tensor)])
    num_kept = num_read if limit is None else min(limit, num_read)
    return take(joined, 0, num_kept), torch.cat(targets)[:num_kept]
