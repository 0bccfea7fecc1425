"""Interpolate the compute time of one worker at any local batch from the measured points of a profile.

Between measured batches the time is interpolated linearly. Below the smallest one the first line is continued, but the
time falls at most in proportion to the batch. Above the largest one its throughput is assumed; a warning
says so.

**Another device.** A profile that is carried to a device of another speed divides these times by the speed. Where only
the device's peaks are known, the expected time of its roofline is taken instead (:mod:`rueda.plan.roofline`). In both
cases a step never takes less than the roofline allows, nor less than the host needs to launch its kernels
(:func:`launch_seconds`), which a faster device does not shorten. Below :func:`smallest_batch` a step is launch-bound:
fewer examples take as long. All this is extrapolated, and a warning says so.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from rueda.errors import ProfileError
from rueda.plan.roofline import REACHED_BANDWIDTH, REACHED_FLOPS, Roofline
from rueda.plan.stragglers import QUARTILE
from rueda.records.profile import Profile, StepTime, update_seconds
from rueda.terminal.numbers import amount, operations

STEP_SECONDS = 0.15e-3
"""time of the host for a step, apart from its layers: the loop, the loss, the optimizer's call. Rough."""
TENSOR_SECONDS = 60e-6
"""Time of the host for each parameter tensor of the model: the operations of its layer, forward and backward, and their
share of the optimizer. Rough: in networks too small to compute anything, a step takes 23 us of a CPU core for each
tensor of linear layers with ReLU, 60 for those of transformer layers, 80 for those of convolutions with batch norm."""
TENSORS = 16
"""number of tensors of a model that is not known, such as a CNN of eight layers"""


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


def compute_time(
    profile: Profile,
    local_batch: int,
    accumulate: int = 1,
    *,
    steps: Sequence[StepTime] = (),
    speed: float | None = None,
    roofline: Roofline | None = None,
) -> Compute:
    """Return the compute time of one worker's step.

    Args:
        profile: holds the measured points of one worker alone on its device.
        local_batch: examples in one forward pass.
        accumulate: gradient accumulation: local batches per update.
        steps: points to interpolate instead, such as those of several workers at once.
        speed: the speed of another device relative to the profiled one, to which the times are carried; None: not
            known, or the profiled device.
        roofline: that of another device, which bounds the times that are carried to it; without ``speed`` they are its
            expected times.

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
    points = _by_batch(steps or profile.steps)
    seconds, backward, optimizer = (_at(points, name, local_batch) for name in ("seconds", "backward", "optimizer"))
    nearest = min(points, key=lambda step: abs(step.batch - local_batch))
    first, last = points[0].batch, points[-1].batch
    warnings = []
    if local_batch > last:
        warnings.append(f"no profile above batch {last:,}: the throughput at {local_batch:,} is assumed to be the same")
    if local_batch < first:
        warnings.append(f"no profile below batch {first:,}: the time at {local_batch:,} is extrapolated")
    optimizer, backward = min(optimizer, seconds), min(backward, seconds)
    if speed is not None or roofline is not None:
        busy, launches = _busy(points, local_batch, speed, roofline), launch_seconds(profile)
        carried = max(busy, launches)
        warnings = warnings if speed is not None else []  # a roofline has no largest batch
        warnings += _extrapolations(profile, local_batch, speed, roofline, is_launch_bound=launches > busy)
        optimizer, backward = (part * carried / seconds for part in (optimizer, backward))
        seconds = carried
    return Compute(
        seconds=update_seconds(seconds, optimizer, accumulate),
        backward=backward,
        deviation=nearest.spread / QUARTILE / nearest.seconds,
        warnings=tuple(warnings),
    )


def launch_seconds(profile: Profile) -> float:
    """Return the least time of a step on a fast device: that of the host, which launches one kernel after the other.

    It is estimated from the number of the model's parameter tensors. If the profiled device is a GPU, whose steps were
    launched as well, it is measured instead: what remains where the line through the two smallest batches meets
    batch 0.
    """
    tensors = TENSORS if profile.tensors is None else profile.tensors
    estimate = STEP_SECONDS + TENSOR_SECONDS * tensors
    if profile.device.startswith("cpu"):
        return estimate
    points = _by_batch(profile.steps)
    if len(points) == 1:
        return min(estimate, points[0].seconds)
    first, second = points[:2]
    slope = max(0.0, (second.seconds - first.seconds) / (second.batch - first.batch))
    return max(0.0, first.seconds - slope * first.batch)


def smallest_batch(profile: Profile, speed: float | None, roofline: Roofline | None = None) -> int:
    """Return the local batch below which a step on another device takes no less time: it is launch-bound.

    There the device's own work, its computation or its memory traffic, takes as long as the launches. A smaller local
    batch wastes the device. It is a power of two, and at most the largest batch that fits.
    """
    floor = launch_seconds(profile)
    points = _by_batch(profile.steps)
    limit = profile.largest_batch or max(profile.examples, points[-1].batch)
    batch = 1
    while _busy(points, batch, speed, roofline) < floor and 2 * batch <= limit:
        batch *= 2
    return batch


def _busy(points: list[StepTime], batch: int, speed: float | None, roofline: Roofline | None) -> float:
    """Return how long another device itself is busy with a step: by its speed and its roofline, or by that alone."""
    if speed is None:
        return _at(points, "seconds", batch) if roofline is None else roofline.expected(batch)
    carried = _at(points, "seconds", batch) / speed
    return carried if roofline is None else max(carried, roofline.least(batch))


def _extrapolations(
    profile: Profile, batch: int, speed: float | None, roofline: Roofline | None, *, is_launch_bound: bool
) -> list[str]:
    """Say what the times on another device rest on, and what limits them at this batch."""
    unit = profile.unit
    if speed is not None:
        text = f"EXTRAPOLATED: times of {profile.device} divided by {speed:g}; nothing was measured on the other device"
    else:
        assert roofline is not None
        text = (
            f"EXTRAPOLATED: nothing was measured on the {roofline.device}; times are those of its roofline, from "
            f"{operations(roofline.work.flops)} and {amount(roofline.work.saved_bytes)} of activations for each of "
            f"the {unit}, at {100 * REACHED_FLOPS:.0f} % of its peak in {roofline.precision} and "
            f"{100 * REACHED_BANDWIDTH:.0f} % of its memory bandwidth, which ResNet-50 reaches; small models reach less"
        )
    found = [text]
    if roofline is not None and roofline.least(batch) >= launch_seconds(profile):
        least = roofline.least(batch)
        capped = speed is not None and _at(_by_batch(profile.steps), "seconds", batch) / speed < least
        if capped or speed is None:
            found.append(
                f"the roofline of the {roofline.device} allows at most {batch / least:,.0f} {unit}/s of a worker at "
                f"local batch {batch:,}" + f"; a speed of {speed or 0:g} would promise more" * capped
            )
    if is_launch_bound:
        enough = smallest_batch(profile, speed, roofline)
        found.append(
            f"below local batch {enough:,} the host's launches are assumed to take longer than the device, "
            f"{1e3 * launch_seconds(profile):.2g} ms a step: a smaller one is no faster"
        )
    return found


def _by_batch(steps: Sequence[StepTime]) -> list[StepTime]:
    """Return the measured steps in the order of their batches, the last one of each batch."""
    return sorted({step.batch: step for step in steps}.values(), key=lambda step: step.batch)


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
