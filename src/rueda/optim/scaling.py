"""Scaling rules: how to scale the learning rate when the batch is scaled by `scale` = batch / base batch.

=========  ==============  ===============  ======================================================================
rule       rate factor     warm-up factor   source
=========  ==============  ===============  ======================================================================
none       1               1                the rate stays, as in a script that only gets more workers
linear     scale           1                Goyal et al. 2017 (1706.02677): one step replaces k small steps
sqrt       sqrt(scale)     1                Krizhevsky 2014, Hoffer et al. 2017: keeps the covariance of the update,
                                            cov ~ rate^2 / batch
legw       sqrt(scale)     scale            You et al. 2019 (1901.08256): as sqrt, with a warm-up of `scale` times as
                                            many epochs, so that it takes the same number of updates
power(p)   scale^p         1                anything in between
=========  ==============  ===============  ======================================================================

A rule is a function from scale to rate factor; :func:`warmup_factor` returns the warm-up factor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from rueda.errors import RecipeError

Rule = Callable[[float], float]


def none(scale: float) -> float:
    """Return 1: the rate stays.

    >>> none(8)
    1.0
    """
    _check(scale)
    return 1.0


def linear(scale: float) -> float:
    """Scale the rate in proportion to the batch.

    >>> linear(8)
    8.0
    """
    return float(_check(scale))


def sqrt(scale: float) -> float:
    """Scale the rate in proportion to the square root of the batch.

    >>> sqrt(16)
    4.0
    """
    return math.sqrt(_check(scale))


def power(exponent: float) -> Rule:
    """Return the rule with another exponent: 0 is none, 0.5 is sqrt, 1 is linear.

    >>> power(0.75)(16)
    8.0
    """

    def rule(scale: float) -> float:
        return float(_check(scale) ** exponent)

    rule.__name__ = f"power({exponent:g})"
    return rule


RULES: Mapping[str, Rule] = MappingProxyType({"none": none, "linear": linear, "sqrt": sqrt, "legw": sqrt})
"""the rules that a recipe may name"""


def rate_factor(rule: str, scale: float) -> float:
    """Return the rate factor of a rule that is given by name.

    >>> [rate_factor(rule, 4) for rule in RULES]
    [1.0, 4.0, 2.0, 2.0]
    """
    if rule not in RULES:
        raise RecipeError("scaling", expected=f"one of {', '.join(RULES)}", got=rule, do="choose one")
    return RULES[rule](scale)


def warmup_factor(rule: str, scale: float) -> float:
    """Return the factor of the warm-up's length in epochs: the scale for LEGW, 1 for all other rules.

    >>> warmup_factor("legw", 4), warmup_factor("linear", 4)
    (4.0, 1.0)
    """
    rate_factor(rule, scale)
    return float(scale) if rule == "legw" else 1.0


def _check(scale: float) -> float:
    if not (scale > 0 and math.isfinite(scale)):
        raise RecipeError("scale", expected="batch / base batch > 0", got=scale, do="check the batch sizes")
    return scale
