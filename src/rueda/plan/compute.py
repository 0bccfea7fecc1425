"""Interpolate the compute time of one worker at any local batch from the measured points of a profile.

Between measured batches the time is interpolated linearly. Below the smallest one the first line is continued, but the
time falls at most in proportion to the batch. Above the largest one its throughput is assumed; a warning
says so.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from rueda.errors import ProfileError
from rueda.plan.stragglers import QUARTILE
from rueda.records.profile import Profile, StepTime, update_seconds


@dataclass(frozen=True, kw_only=True)
class Compute:
    """Seconds of a worker's step without communication."""

    seconds: float
    """the whole step with all its micro-batches"""
    backward: float
    """the last backward pass, which can hide an all-reduce"""
    deviation: float
    """standard deviation of the step, as a fraction"""
    warnings: tuple[str, ...] = ()


def compute_time(profile: Profile, local_batch: int, accumulate: int = 1, *, steps: Sequence[StepTime] = ()) -> Compute:
    """Return the compute time of one worker's step.

    Args:
        profile: holds the measured points of one worker alone on its device.
        local_batch: examples in one forward pass.
        accumulate: gradient accumulation: local batches per update.
        steps: points to interpolate instead, such as those of several workers at once.

    Raises:
        ProfileError: the batch is not positive, or does not fit into the device's memory.
    """
    for name, value in (("local batch", local_batch), ("accumulate", accumulate)):
        if value < 1:
            raise ProfileError(name, expected="1 or more", got=value, do="correct it")
    if profile.largest_batch is not None and local_batch > profile.largest_batch:
        do = f"accumulate batches of {profile.largest_batch}"
        expected = f"at most {profile.largest_batch}, the largest that fits into memory"
        raise ProfileError("local batch", expected=expected, got=local_batch, do=do)
    points = sorted({step.batch: step for step in steps or profile.steps}.values(), key=lambda step: step.batch)
    seconds, backward, optimizer = (_at(points, name, local_batch) for name in ("seconds", "backward", "optimizer"))
    nearest = min(points, key=lambda step: abs(step.batch - local_batch))
    first, last = points[0].batch, points[-1].batch
    warnings = []
    if local_batch > last:
        warnings.append(f"no profile above batch {last:,}: the throughput at {local_batch:,} is assumed to be the same")
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
    """Interpolate one of the times; the optimizer's stays constant outside the measured batches."""
    batches = [point.batch for point in points]
    values = [float(getattr(point, name)) for point in points]
    if name == "optimizer":
        batch = min(max(batch, batches[0]), batches[-1])
    if batch >= batches[-1] or len(points) == 1:
        return values[-1] * (batch / batches[-1])
    if batch < batches[0]:
        slope = max(0.0, (values[1] - values[0]) / (batches[1] - batches[0]))
        return max(values[0] * batch / batches[0], values[0] - slope * (batches[0] - batch))
    right = bisect(batches, batch)
    share = (batch - batches[right - 1]) / (batches[right] - batches[right - 1])
    return values[right - 1] + share * (values[right] - values[right - 1])
