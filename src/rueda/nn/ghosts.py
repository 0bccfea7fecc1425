"""How a batch falls into ghost batches, and what a chain of ghosts does to a running average.

Both are plain arithmetic, kept apart from the kernels so that they can be read and tested alone.
"""

from __future__ import annotations

import torch
from torch import Tensor


def ghost_sizes(num_examples: int, ghost_batch: int, values_per_example: int = 1) -> tuple[int, ...]:
    """Cut a batch into ghosts of `ghost_batch` examples; the last one is the smaller one.

    A remainder that would hold a single value per channel has no variance. `torch` refuses such a batch; here
    it joins the ghost before it, so that the last batch of an epoch never ends a training.

    Args:
        num_examples: examples in the batch.
        ghost_batch: examples in a ghost.
        values_per_example: values per channel in one example (height x width for an image).

    >>> ghost_sizes(96, 32), ghost_sizes(100, 32), ghost_sizes(20, 32)
    ((32, 32, 32), (32, 32, 32, 4), (20,))
    >>> ghost_sizes(65, 32), ghost_sizes(65, 32, values_per_example=49)
    ((32, 33), (32, 32, 1))
    """
    full, rest = divmod(num_examples, ghost_batch)
    sizes = [ghost_batch] * full
    if rest * values_per_example == 1 and sizes:
        sizes[-1] += rest
    elif rest:
        sizes.append(rest)
    return tuple(sizes)


def chained_average(running: Tensor, observed: Tensor, momentum: float) -> Tensor:
    """Return the running average after one exponential update per row of `observed`, in closed form.

    The chain ``r <- (1-m) r + m s_g`` over ghosts g = 1..G is one weighted sum:

        r_G = (1-m)^G r_0 + m * sum_g (1-m)^(G-g) s_g

    Args:
        running: the average so far, [C].
        observed: one statistic per ghost, [G, C], in the order of the updates.
        momentum: the weight m of a new observation, as in `torch.nn.BatchNorm2d`.

    >>> chained_average(torch.tensor([0.0]), torch.tensor([[1.0], [2.0]]), 0.5)   # 0 -> 0.5 -> 1.25
    tensor([1.2500])
    """
    num_ghosts = observed.shape[0]
    powers = torch.arange(num_ghosts - 1, -1, -1, device=observed.device, dtype=observed.dtype)
    weights = momentum * (1.0 - momentum) ** powers  # [G]
    return running * (1.0 - momentum) ** num_ghosts + (weights @ observed).to(running.dtype)


def cumulative_average(running: Tensor, observed: Tensor, num_before: Tensor) -> Tensor:
    """Return the plain mean of all observations: what `momentum=None` means to `torch.nn.BatchNorm2d`.

    Args:
        running: the mean of the observations so far, [C].
        observed: one statistic per ghost, [G, C].
        num_before: how many observations `running` holds (a tensor: no device is made to wait for it).

    >>> cumulative_average(torch.tensor([1.0]), torch.tensor([[2.0], [6.0]]), torch.tensor(2))
    tensor([2.5000])
    """
    num_ghosts = observed.shape[0]
    total = running * num_before + observed.sum(0).to(running.dtype)
    return total / (num_before + num_ghosts)
