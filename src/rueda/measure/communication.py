"""Measure the time of all-reduces of several sizes among real workers, and fit latency and bandwidth.

The sizes are measured in turn, in several rounds; in each round the first all-reduce of a size is not timed. A
collective ends when its slowest worker has finished, so the longest time among the workers counts for each all-reduce,
and the median over all repeats for each size. They take the way that the gradients of a training take: on one host
through shared memory, else by Gloo or NCCL (:attr:`rueda.World.transport`). On a GPU the all-reduces are queued one
behind the other and timed by events, since a training does not wait for the device either: what is measured is the
transfer, not the launch.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.distributed as dist

from rueda.errors import WorldError
from rueda.measure.fit import fit_line
from rueda.measure.request import SIZES
from rueda.measure.spread import median_and_spread
from rueda.records.profile import AllReduceTime, Communication
from rueda.world import World
from rueda.world.device import float64_device, is_gpu

_ROUNDS = 3
_MOST = 50
"""largest number of all-reduces of one size in a round"""


def measure_communication(world: World, *, sizes: Sequence[int] = SIZES, seconds: float = 4.0) -> Communication:
    """Measure all-reduces of several sizes; every worker must call this, and every worker gets the result.

    Args:
        world: the workers, two or more.
        sizes: message sizes in bytes, multiples of 4.
        seconds: approximate duration of the measurement.
    """
    if world.size < 2:
        raise WorldError("an all-reduce needs two workers or more, got 1; start with `rueda run -np 2`")
    tensors = {size: torch.zeros(max(1, size // 4), device=world.device) for size in sizes}
    estimates = {size: slowest(world, min(_times(world, tensor, 3))) for size, tensor in tensors.items()}
    share = seconds / (_ROUNDS * len(sizes))
    found: dict[int, list[float]] = {size: [] for size in sizes}
    for _ in range(_ROUNDS):
        for size, tensor in tensors.items():
            found[size] += _times(world, tensor, max(3, min(_MOST, round(share / estimates[size]))))
    points = []
    for size, mine in found.items():
        everybody = world.all_gather_object(mine)
        longest = [max(together) for together in zip(*everybody, strict=True)]
        seconds_each, spread = median_and_spread(longest)
        points.append(AllReduceTime(bytes=size, seconds=seconds_each, spread=spread, repeats=len(longest)))
    line = fit_line([point.bytes for point in points], [point.seconds for point in points])
    return Communication(
        workers=world.size, backend=world.transport, points=tuple(points),
        latency=line.latency, bandwidth=line.bandwidth, residual=line.residual,
    )  # fmt: skip


def _times(world: World, tensor: torch.Tensor, count: int) -> list[float]:
    world.barrier()
    if is_gpu(world.device):
        return _times_on_device(tensor, count)
    times = []
    for number in range(count + 1):
        started = time.perf_counter()
        world.all_reduce_(tensor)
        if number:
            times.append(time.perf_counter() - started)
    return times


def _times_on_device(tensor: torch.Tensor, count: int) -> list[float]:
    """Time all-reduces by events in the device's queue: a clock on the host would add each launch and each wait."""
    module = torch.get_device_module(tensor.device)
    events = [module.Event(enable_timing=True) for _ in range(count + 2)]
    events[0].record()
    for event in events[1:]:
        dist.all_reduce(tensor)
        event.record()
    events[-1].synchronize()
    return [start.elapsed_time(end) / 1000 for start, end in pairwise(events[1:])]


def slowest(world: World, seconds: float) -> float:
    """Return the longest of all workers' times, so that all of them choose the same number of repeats."""
    mine = torch.tensor([seconds], dtype=torch.float64, device=float64_device(world.device))
    return float(world.all_reduce(mine, "max")[0])
