"""How often to save a checkpoint: the formulas of Young and Daly, and the expected time that they minimise.

A checkpoint interrupts the computation for C seconds, and the training is interrupted every M seconds on average. If it
saves after every τ seconds of computation, it loses the fraction C / τ of the time to saving, and at each failure what
was computed since the last checkpoint, τ / 2 on average. The sum C / τ + τ / (2 M) is least at

    τ = sqrt(2 C M)                                                          Young 1974

which holds if C is small against M: it neglects that failures also happen while the training saves, recovers and
computes for the second time. With exponentially distributed failures, the expected time of τ seconds of computation and
its checkpoint is known exactly (Daly 2006; with D seconds until a failure is noticed, in which nothing fails, Bougeret
et al. 2011):

    T(τ) = (M + D) e^(R / M) (e^((τ + C) / M) - 1)

with R seconds of recovery, in which failures happen as well. Neither R nor D changes where T(τ) / τ is least. That is a
root of a transcendental equation, which Daly approximates by a series,

    τ = sqrt(2 C M) (1 + sqrt(C / (2 M)) / 3 + C / (18 M)) - C,  or M where C >= 2 M        Daly 2006

and Lambert's function W solves: τ = M (1 + W(-e^(-C / M - 1))).

**When each holds.** Young's τ is 5 % too long at C = M / 100, which costs 0.02 % of the time, and 17 % at C = M / 10,
which costs 0.5 %; Daly's is within 0.6 % up to C = M / 2, and 6 % off at worst, near C = 2 M. Both are for a long
training with independent failures. The optimum is flat: at twice or half of it, saving and repeating cost a quarter
more. A checkpoint that is written asynchronously stalls the computation for less time than its writing takes; C is then
the stall. The rest of the writing makes each failure lose more, whatever τ is, so it does not move the optimum; but
τ + C cannot be shorter than the writing.

Young 1974, *A first order approximation to the optimum checkpoint interval*, Communications of the ACM 17(9).
Daly 2006, *A higher order estimate of the optimum checkpoint interval for restart dumps*, Future Generation Computer
Systems 22(3).
"""

from __future__ import annotations

import math


def young_interval(stall: float, mtbf: float) -> float:
    """Return Young's interval between two checkpoints, in the unit of its arguments.

    Args:
        stall: how long a checkpoint interrupts the computation.
        mtbf: mean time between failures of the whole training.

    >>> young_interval(5, 24 * 60)
    120.0
    """
    return math.sqrt(2 * stall * mtbf)


def daly_interval(stall: float, mtbf: float) -> float:
    """Return Daly's interval, see :func:`young_interval`; his own examples:

    >>> [round(daly_interval(5, hours * 60), 1) for hours in (24, 6, 0.25)]
    [116.7, 56.7, 9.1]
    """
    if stall >= 2 * mtbf:
        return mtbf
    ratio = stall / (2 * mtbf)
    return young_interval(stall, mtbf) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - stall


def best_interval(stall: float, mtbf: float) -> float:
    """Return the interval with the least expected time, which Daly's approximates.

    >>> [round(best_interval(5, hours * 60), 1) for hours in (24, 6, 0.25)]
    [116.7, 56.7, 9.2]
    """
    # x = τ / M solves (x - 1) e^x = -e^(-C / M); the left side rises from -1 at x = 0 to 0 at x = 1.
    goal, low, high = -math.exp(-stall / mtbf), 0.0, 1.0
    for _ in range(100):
        middle = (low + high) / 2
        if (middle - 1) * math.exp(middle) < goal:
            low = middle
        else:
            high = middle
    return mtbf * high


def expected_seconds(
    work: float, interval: float, *, stall: float, mtbf: float, recover: float = 0.0, detect: float = 0.0
) -> float:
    """Return the expected time of a training that saves synchronously and always has enough nodes.

    Args:
        work: how long the training computes, a multiple of the interval.
        interval: computation between two checkpoints; the last one is written as well.
        stall: how long a checkpoint takes.
        mtbf: mean time between failures of the whole training.
        recover: how long it takes to start again; failures happen meanwhile, too.
        detect: how long a failure is not noticed; nothing else fails meanwhile.

    >>> round(expected_seconds(24, 1, stall=1 / 60, mtbf=29, recover=1 / 12), 2)
    24.9
    """
    try:
        once = (mtbf + detect) * math.exp(recover / mtbf) * math.expm1((interval + stall) / mtbf)
    except OverflowError:  # no checkpoint is ever reached
        return math.inf
    return once * work / interval
