"""Gradient noise: restore the noise that a large batch averages away.

**Multiplicative** (Hoffer, Hubara and Soudry 2017, 1705.08741). The gradient g_n of each example is multiplied by its
own z_n ~ N(1, sigma^2):

    g^ = (1/M) sum_n z_n g_n

No per-example gradients are needed. The gradient is linear in the losses, so weighting the losses is equivalent:

    grad of (1/M) sum_n z_n loss_n  =  (1/M) sum_n z_n g_n

Given the batch, since the z_n are independent with mean 1 and variance sigma^2:

    E[g^]   = (1/M) sum_n g_n                       the mean stays
    cov[g^] = (sigma^2/M^2) sum_n g_n g_n^T         noise along the examples' gradients

**Additive** (Neelakantan et al. 2015, 1511.06807). Gaussian noise on the gradient, annealed:

    g^ = g + N(0, sigma_t^2),   sigma_t^2 = eta / (1 + t)^gamma

All random numbers are functions of (seed, step, rank): a resumed or rehearsed training repeats them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from rueda.errors import RecipeError
from rueda.world.device import send
from rueda.world.seeds import derive


def noise_weights(
    num_examples: int,
    sigma: float,
    *,
    seed: int,
    step: int,
    rank: int = 0,
    part: int = 0,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Draw the weights z_n ~ N(1, sigma^2) of a batch; multiply the examples' losses by them, then average.

    Args:
        num_examples: examples in this worker's batch.
        sigma: standard deviation of a weight; see `sigma_for`.
        seed: seed of the training.
        step: number of the update.
        rank: rank of the worker; each draws its own weights.
        part: index of the micro-batch in gradient accumulation.
        device: device of the losses; the values are drawn on the CPU, so that they do not depend on it.

    >>> noise_weights(3, 0.5, seed=0, step=7).tolist() == noise_weights(3, 0.5, seed=0, step=7).tolist()
    True
    >>> noise_weights(2, 0.0, seed=0, step=7)
    tensor([1., 1.])
    """
    if not (sigma >= 0 and math.isfinite(sigma)):
        raise RecipeError("sigma", expected="0 or more", got=sigma, do="use sigma_for")
    weights = torch.empty(num_examples)
    return send(weights.normal_(1.0, sigma, generator=_generator(seed, step, rank, part)), device)


def weighted_mean(losses: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean of the examples' losses, [M]: (1/M) sum z_n loss_n.

    >>> weighted_mean(torch.tensor([1.0, 3.0]), torch.tensor([1.5, 0.5]))
    tensor(1.5000)
    """
    if losses.shape != weights.shape:
        raise RecipeError(
            "gradient noise",
            expected=f"one loss per example, shape {tuple(weights.shape)}",
            got=tuple(losses.shape),
            do="give the task a loss with reduction='none'",
        )
    return torch.dot(losses, weights.to(losses.dtype)) / len(losses)


def sigma_for(batch: int, base_batch: int, *, rate_factor: float = 1.0) -> float:
    """Return the sigma that gives the update of a large batch the covariance of a small batch's update.

    If the gradients of the examples have the second moment G = E[g g^T], the noisy gradient of M examples has, in the
    paper's approximation (the mean gradient is small compared with that of a single example), the covariance

        cov = G (1 + sigma^2) / M      from sampling: G/M; from the noise: sigma^2 G/M

    and the update has rate^2 times that. With rate = rate_factor x base rate, equality with G / base_batch requires

        sigma^2 = batch / (base_batch rate_factor^2) - 1

    which grows in proportion to M at an unchanged rate. Square-root scaling (rate_factor^2 = batch/base_batch) needs no
    noise, and linear scaling has more than enough: the result is 0.

    >>> sigma_for(1024, 128), round(sigma_for(512, 128), 3)
    (2.6457513110645907, 1.732)
    >>> sigma_for(1024, 128, rate_factor=8**0.5), sigma_for(1024, 128, rate_factor=8)
    (0.0, 0.0)
    """
    if batch < 1 or base_batch < 1 or not rate_factor > 0:
        raise RecipeError(
            "sigma_for", expected="positive sizes", got=(batch, base_batch, rate_factor), do="check the recipe"
        )
    excess = batch / (base_batch * rate_factor**2) - 1.0
    return math.sqrt(excess) if excess > 1e-12 else 0.0


def annealed_sigma(step: int, *, eta: float, gamma: float = 0.55) -> float:
    """Return the standard deviation of the additive noise: sqrt(eta / (1 + step)^gamma).

    The paper uses eta in 0.01, 0.3, 1 and gamma = 0.55.

    >>> annealed_sigma(0, eta=0.01), round(annealed_sigma(999, eta=0.01), 4)
    (0.1, 0.015)
    """
    if eta < 0 or gamma < 0:
        raise RecipeError("additive noise", expected="eta, gamma >= 0", got=(eta, gamma), do="correct it")
    return math.sqrt(eta / (1.0 + step) ** gamma)


@torch.no_grad()
def add_noise(
    parameters: Iterable[nn.Parameter],
    *,
    step: int,
    eta: float,
    gamma: float = 0.55,
    seed: int,
    rank: int | None = None,
) -> float:
    """Add annealed Gaussian noise to the gradients, in place; return its standard deviation.

    Args:
        parameters: the parameters; those without a gradient are skipped.
        step: number t of the update.
        eta, gamma: constants of the annealing; see `annealed_sigma`.
        seed: seed of the training.
        rank: None draws the same noise on all workers, to be added after the all-reduce, so that the workers stay
            identical. A rank draws this worker's own noise, to be added before the all-reduce, which divides the
            variance by the number of workers.
    """
    sigma = annealed_sigma(step, eta=eta, gamma=gamma)
    grads = [each.grad for each in parameters if each.grad is not None]
    if sigma == 0.0 or not grads:
        return sigma
    generators: dict[torch.device, torch.Generator] = {}
    for grad in grads:
        if grad.device not in generators:
            generators[grad.device] = _generator(seed, step, -1 if rank is None else rank, -1, grad.device)
    draws = [torch.empty_like(grad).normal_(generator=generators[grad.device]) for grad in grads]
    torch._foreach_add_(grads, draws, alpha=sigma)
    return sigma


def _generator(seed: int, step: int, rank: int, part: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a generator that depends only on (seed, step, rank, part)."""
    return torch.Generator(device=device).manual_seed(derive("gradient noise", seed, step, rank, part))
