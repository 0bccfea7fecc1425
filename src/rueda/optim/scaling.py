"""Scaling rules: how the rate grows when the batch grows by a factor `scale` = batch / base batch.

=========  ==============  ===============  ======================================================================
rule       rate factor     warm-up factor   where from
=========  ==============  ===============  ======================================================================
none       1               1                the rate stays: what a script does when only workers are added
linear     scale           1                Goyal et al. 2017 (1706.02677): k small steps become one k times as long
sqrt       sqrt(scale)     1                Krizhevsky 2014, Hoffer et al. 2017: keeps the covariance of the update,
                                            cov ~ rate^2 / batch
legw       sqrt(scale)     scale            You et al. 2019 (1901.08256): the same, and a warm-up as many times as
                                            long in epochs, so that it takes the same number of updates
power(p)   scale^p         1                anything between
=========  ==============  ===============  ======================================================================

Each is a plain function from scale to factor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from rueda.errors import RecipeError

Rule = Callable[[float], float]


class Legw(NamedTuple):
    """What LEGW scales: the rate, and the length of the warm-up in epochs."""

    rate: float
    warmup: float


def none(scale: float) -> float:
    """Keep the rate.

    >>> none(8)
    1.0
    """
    _check(scale)
    return 1.0


def linear(scale: float) -> float:
    """Scale the rate as the batch.

    >>> linear(8)
    8.0
    """
    return float(_check(scale))


def sqrt(scale: float) -> float:
    """Scale the rate as the square root of the batch.

    >>> sqrt(16)
    4.0
    """
    return math.sqrt(_check(scale))


def power(exponent: float) -> Rule:
    """Make a rule of another power: 0 is none, 0.5 is sqrt, 1 is linear.

    >>> power(0.75)(16)
    8.0
    """

    def rule(scale: float) -> float:
        return float(_check(scale) ** exponent)

    rule.__name__ = f"power({exponent:g})"
    return rule


def legw(scale: float) -> Legw:
    """Scale the rate as the square root of the batch and the warm-up, in epochs, as the batch.

    >>> legw(16)
    Legw(rate=4.0, warmup=16.0)
    """
    return Legw(sqrt(scale), linear(scale))


RULES: Mapping[str, Rule] = MappingProxyType(
    {"none": none, "linear": linear, "sqrt": sqrt, "legw": lambda scale: legw(scale).rate}
)
"""The rules a recipe may name, each from scale to the rate's factor."""


def rate_factor(rule: str, scale: float) -> float:
    """Return the factor of the rate under a rule named in a recipe.

    >>> [rate_factor(rule, 4) for rule in RULES]
    [1.0, 4.0, 2.0, 2.0]
    """
    if rule not in RULES:
        raise RecipeError("scaling", expected=f"one of {', '.join(RULES)}", got=rule, do="choose one")
    return RULES[rule](scale)


def warmup_factor(rule: str, scale: float) -> float:
    """Return the factor of the warm-up's length in epochs: the scale under LEGW, 1 under the others.

    >>> warmup_factor("legw", 4), warmup_factor("linear", 4)
    (4.0, 1.0)
    """
    rate_factor(rule, scale)
    return legw(scale).warmup if rule == "legw" else 1.0


def _check(scale: float) -> float:
    if not (scale > 0 and math.isfinite(scale)):
        raise RecipeError("scale", expected="batch / base batch > 0", got=scale, do="check the batch sizes")
    return scale
