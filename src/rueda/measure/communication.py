"""Time of an all-reduce against its bytes, among real workers: latency and bandwidth.

Each size has its turns; a turn is one all-reduce that nobody times and some that everybody does. A collective has ended
when its slowest worker has it, so of each all-reduce the longest time counts, and of all of a size the median.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist

from rueda.errors import WorldError
from rueda.measure.clock import wait_for
from rueda.measure.fit import fit_line
from rueda.measure.request import SIZES
from rueda.records.profile import AllReduceTime, Communication
from rueda.world import World
from rueda.world.device import float64_device

_ROUNDS = 3
_MOST = 50
"""all-reduces of one size in a round"""


def measure_communication(world: World, *, sizes: Sequence[int] = SIZES, seconds: float = 4.0) -> Communication:
    """Measure all-reduces of some sizes; all workers must call it, all get the result.

    Args:
        world: the workers, two or more.
        sizes: bytes, multiples of 4.
        seconds: for all of it, about.
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
        quartiles = statistics.quantiles(longest, n=4)
        points.append(
            AllReduceTime(
                bytes=size, seconds=statistics.median(longest), spread=(quartiles[2] - quartiles[0]) / 2,
                repeats=len(longest),
            )
        )  # fmt: skip
    line = fit_line([point.bytes for point in points], [point.seconds for point in points])
    return Communication(
        workers=world.size, backend="nccl" if world.device.type == "cuda" else "gloo", points=tuple(points),
        latency=line.latency, bandwidth=line.bandwidth, residual=line.residual,
    )  # fmt: skip


def _times(world: World, tensor: torch.Tensor, count: int) -> list[float]:
    world.barrier()
    times = []
    for number in range(count + 1):
        wait_for(world.device)
        started = time.perf_counter()
        dist.all_reduce(tensor)
        wait_for(world.device)
        if number:
            times.append(time.perf_counter() - started)
    return times


def slowest(world: World, seconds: float) -> float:
    """Take the slowest worker's time: all must repeat equally often."""
    mine = torch.tensor([seconds], dtype=torch.float64, device=float64_device(world.device))
    return float(world.all_reduce(mine, "max")[0])
