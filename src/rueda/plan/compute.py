"""Compute time of one worker against its local batch, from the measured points of a profile.

Between measured batches the time is a straight line. Below the smallest it follows the first line, but falls no faster
than the batch. Above the largest, images a second are taken to stay as they were there: a guess, and said to be one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rueda.errors import ProfileError
from rueda.plan.stragglers import QUARTILE
from rueda.records.profile import Profile, StepTime, update_seconds


@dataclass(frozen=True, kw_only=True)
class Compute:
    """Seconds of a worker's step without any exchange."""

    seconds: float
    """the whole step, all its micro-batches"""
    backward: float
    """the last backward pass, behind which an exchange can hide"""
    deviation: float
    """standard deviation of the step, as a fraction"""
    warnings: tuple[str, ...] = ()


def compute_time(profile: Profile, local_batch: int, accumulate: int = 1, *, steps: Sequence[StepTime] = ()) -> Compute:
    """Give the time of one worker's step.

    Args:
        profile: has the measured points of a worker alone on its device.
        local_batch: examples that the worker takes through the network at once.
        accumulate: such batches before an update.
        steps: other points to take it from, such as those of several workers at once.

    Raises:
        ProfileError: the batch does not fit into the device's memory, or is no batch.
    """
    for name, value in (("local batch", local_batch), ("accumulate", accumulate)):
        if value < 1:
            raise ProfileError(name, expected="1 or more", got=value, do="correct it")
    if profile.largest_batch is not None and local_batch > profile.largest_batch:
        do = f"accumulate batches of {profile.largest_batch}"
        expected = f"at most {profile.largest_batch}, which fits into memory"
        raise ProfileError("local batch", expected=expected, got=local_batch, do=do)
    points = sorted({step.batch: step for step in steps or profile.steps}.values(), key=lambda step: step.batch)
    seconds, backward, optimizer = (_at(points, name, local_batch) for name in ("seconds", "backward", "optimizer"))
    nearest = min(points, key=lambda step: abs(step.batch - local_batch))
    first, last = points[0].batch, points[-1].batch
    warnings = []
    if local_batch > last:
        warnings.append(f"no profile above batch {last:,}: images/s at {local_batch:,} are taken to be those there")
    if local_batch < first:
        warnings.append(f"no profile below batch {first:,}: the time at {local_batch:,} is extrapolated")
    optimizer = min(optimizer, seconds)
    return Compute(
        seconds=update_seconds(seconds, optimizer, accumulate),
        backward=min(backward, seconds),
        deviation=nearest.spread / QUARTILE / nearest.seconds,
        warnings=tuple(warnings),
    )


def _at(points: list[StepTime], name: str, batch: int) -> float:
    """Interpolate one of the times; the optimizer's does not depend on the batch beyond the ends."""
    batches = [point.batch for point in points]
    values = [float(getattr(point, name)) for point in points]
    index = bisect_left(batches, batch)
    if index < len(batches) and batches[index] == batch:
        return values[index]
    if name == "optimizer" and not batches[0] < batch < batches[-1]:
        return values[0] if batch < batches[0] else values[-1]
    if batch > batches[-1]:
        return values[-1] * batch / batches[-1]
    if batch < batches[0]:
        least = values[0] * batch / batches[0]
        if len(points) == 1:
            return least
        slope = max(0.0, (values[1] - values[0]) / (batches[1] - batches[0]))
        return max(least, values[0] - slope * (batches[0] - batch))
    (left, right), (low, high) = list(pairwise(batches))[index - 1], list(pairwise(values))[index - 1]
    return low + (high - low) * (batch - left) / (right - left)
