"""Read examples into memory, from any loader of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from rueda.errors import ExamineError

Inputs = Tensor | tuple[Tensor, ...]
"""[N, ...], or a tuple of such tensors for a model with several inputs"""


def parts(inputs: Inputs) -> tuple[Tensor, ...]:
    """Return the inputs as a tuple, to be passed as ``model(*parts(inputs))``."""
    return inputs if isinstance(inputs, tuple) else (inputs,)


def each(function: Callable[[Tensor], Tensor], inputs: Inputs) -> Inputs:
    """Apply a function to the tensor, or to each tensor of a tuple."""
    return tuple(map(function, inputs)) if isinstance(inputs, tuple) else function(inputs)


def take(inputs: Inputs, start: int, stop: int) -> Inputs:
    """Return the examples from ``start`` to ``stop``."""
    return each(lambda part: part[start:stop], inputs)


def read_loader(loader: Iterable[Any], limit: int | None = None) -> tuple[Inputs, Tensor]:
    """Read ``(inputs, targets)`` batches, at most ``limit`` examples, and join them.

    >>> inputs, targets = read_loader([(torch.zeros(2, 3), torch.ones(2)), (torch.zeros(2, 3), torch.ones(2))], 3)
    >>> list(inputs.shape), list(targets.shape)
    ([3, 3], [3])
    """
    read: list[Inputs] = []
    targets: list[Tensor] = []
    num_read = 0
    for batch in loader:
        if not isinstance(batch, (list, tuple)) or len(batch) < 2 or not isinstance(batch[1], Tensor):
            do = "wrap the loader in a generator that yields both"
            raise ExamineError("a batch of the loader", expected="(inputs, targets)", got=type(batch).__name__, do=do)
        read.append(tuple(batch[0]) if isinstance(batch[0], (list, tuple)) else batch[0])
        targets.append(batch[1])
        num_read += len(batch[1])
        if limit is not None and num_read >= limit:
            break
    if num_read == 0:
        do = "pass a loader that is not empty or used up"
        raise ExamineError("the loader", expected="at least one batch of (inputs, targets)", got="none", do=do)
    columns = tuple(torch.cat(column) for column in zip(*map(parts, read), strict=True))
    joined: Inputs = columns if isinstance(read[0], tuple) else columns[0]
    num_kept = num_read if limit is None else min(limit, num_read)
    return take(joined, 0, num_kept), torch.cat(targets)[:num_kept]
