"""Directions in the space of parameters: random and filter-normalised, or from one model to another.

Li et al. 2018 (1712.09913). The scale of a network's weights means little: twice the weights in one layer and half of
them in the next give the same function, but a random step of fixed length then looks half as large in the first. So
each filter of a random direction d is given the length of the same filter of the model w,

    d_ij <- d_ij |w_ij| / (|d_ij| + 1e-10)

with i the layer and j the filter: the first index of a convolution's weight, the neuron of a linear layer. The
directions of biases and of batch norm (all parameters of fewer than two dimensions) are zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rueda.errors import ExamineError
from rueda.examine.request import NORMALISATIONS
from rueda.world.device import to_float64
from rueda.world.seeds import derive

TINY = 1e-10

Direction = list[Tensor]
"""one tensor per parameter, in the parameters' order"""


def random_direction(
    origin: Sequence[Tensor], *, seed: int = 0, index: int = 0, normalise: str = "filter"
) -> Direction:
    """Draw a direction from N(0, 1) and normalise it by the parameters; the same on every machine.

    Args:
        origin: the parameters.
        seed: the seed of the random numbers.
        index: the number of the direction, since one seed gives many.
        normalise: ``filter`` by filter, ``layer`` by layer, or ``none``, in which case biases are moved as well.

    Raises:
        ExamineError: the direction is zero, because all weights are zero or there are only biases.

    >>> (direction,) = random_direction([torch.tensor([[3.0, 4.0], [0.0, 1.0]])])
    >>> [round(float(length), 4) for length in direction.norm(dim=1)]
    [5.0, 1.0]
    """
    if normalise not in NORMALISATIONS:
        raise ExamineError("normalise", expected=f"one of {', '.join(NORMALISATIONS)}", got=normalise, do="choose one")
    generator = torch.Generator().manual_seed(derive("direction", seed, index))
    # Drawn on the CPU in float32 whatever the model's device and type, so that a seed always gives one direction.
    drawn = [torch.randn(one.shape, generator=generator).to(one) for one in origin]
    if normalise != "none":
        drawn = [_normalised(part, weights, normalise) for part, weights in zip(drawn, origin, strict=True)]
    check_direction(drawn, "the random direction")
    return drawn


def norm(direction: Sequence[Tensor]) -> float:
    """Return the Euclidean length.

    >>> norm([torch.tensor([3.0]), torch.tensor([[4.0]])])
    5.0
    """
    return math.sqrt(sum(float(to_float64(part).square().sum()) for part in direction))


def cosine(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """Return the cosine of the angle between two directions: near 0 for random ones in many dimensions."""
    product = sum(float((to_float64(a) * to_float64(b)).sum()) for a, b in zip(one, other, strict=True))
    return product / (norm(one) * norm(other))


def direction_words(normalise: str, seed: int) -> str:
    """Describe for a record how random directions were drawn."""
    return {"filter": "filter-normalised", "layer": "layer-normalised"}.get(normalise, "random") + f", seed {seed}"


def check_direction(direction: Sequence[Tensor], what: str = "the direction") -> None:
    """Raise an error if a direction is zero or contains NaN."""
    length = norm(direction)
    if not math.isfinite(length):
        raise ExamineError(what, expected="finite numbers", got=length, do="check the model's weights")
    if length == 0.0:
        do = "choose two different models, or for a model without weights of two dimensions normalise = none"
        raise ExamineError(what, expected="a length above 0", got=0.0, do=do)


def _normalised(direction: Tensor, weights: Tensor, normalise: str) -> Tensor:
    if weights.dim() < 2:
        return torch.zeros_like(direction)
    dims = tuple(range(1, weights.dim())) if normalise == "filter" else tuple(range(weights.dim()))
    wanted, drawn = (torch.linalg.vector_norm(one, dim=dims, keepdim=True) for one in (weights, direction))
    normalised: Tensor = direction * (wanted / (drawn + TINY))
    return normalised
