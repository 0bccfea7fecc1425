"""The effect of several ghosts on a running average."""

from __future__ import annotations

import torch
from torch import Tensor


def chain_average_(running: Tensor, observed: Tensor, weights: Tensor, momentum: float) -> Tensor:
    """Update a running average in place as one exponential update per row of `observed` would, by one operation.

    The chain ``r <- (1-m) r + m s_g`` over ghosts g = 1..G is one weighted sum:

        r_G = (1-m)^G r_0 + m * sum_g (1-m)^(G-g) s_g

    Args:
        running: the average so far, [C].
        observed: one statistic per ghost, [G, C], in the order of the updates.
        weights: the factors m (1-m)^(G-g), [G], from `chain_weights`; those of biased variances also times n/(n-1).
        momentum: the weight m of a new observation, as in `torch.nn.BatchNorm2d`.

    >>> observed = torch.tensor([[1.0], [2.0]])
    >>> chain_average_(torch.tensor([0.0]), observed, chain_weights(observed, 0.5), 0.5)   # 0 -> 0.5 -> 1.25
    tensor([1.2500])
    """
    kept = (1.0 - momentum) ** len(weights)
    if running.dtype == observed.dtype:
        return running.addmv_(observed.t(), weights, beta=kept)
    return running.mul_(kept).add_((weights @ observed).to(running.dtype))


def chain_weights(observed: Tensor, momentum: float) -> Tensor:
    """Return m (1-m)^(G-g) for the ghosts g = 1..G of `observed`, [G], computed on its device."""
    powers = torch.arange(observed.shape[0] - 1, -1, -1, device=observed.device, dtype=observed.dtype)
    return momentum * (1.0 - momentum) ** powers


def unbiased(variance: Tensor, counts: list[int]) -> Tensor:
    """Return the unbiased variances of ghosts, [G, C], from the biased ones; all counts but the last are equal.

    >>> unbiased(torch.tensor([[1.0], [1.0]]), [2, 5]).flatten()
    tensor([2.0000, 1.2500])
    """
    first, last = (n / (n - 1) for n in (counts[0], counts[-1]))
    return variance * first if first == last else torch.cat([variance[:-1] * first, variance[-1:] * last])


def cumulative_average(running: Tensor, observed: Tensor, num_before: Tensor) -> Tensor:
    """Return the plain mean of all observations: what `momentum=None` means to `torch.nn.BatchNorm2d`.

    Args:
        running: the mean of the observations so far, [C].
        observed: one statistic per ghost, [G, C].
        num_before: the number of observations so far (a tensor, so that the device need not be synchronised).

    >>> cumulative_average(torch.tensor([1.0]), torch.tensor([[2.0], [6.0]]), torch.tensor(2))
    tensor([2.5000])
    """
    num_ghosts = observed.shape[0]
    total = running * num_before + observed.sum(0).to(running.dtype)
    return total / (num_before + num_ghosts)
