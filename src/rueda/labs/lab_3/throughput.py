"""Throughput against the local batch: measured on this machine, and as published for a GPU."""

from __future__ import annotations

from functools import cache

from rueda.labs.lab_3.small_task import small_glyphs
from rueda.records.throughput import Throughput, ThroughputPoint
from rueda.report.figures.throughput import throughput as throughput_plot
from rueda.report.plot import Plot

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
GPU_IMAGES_PER_SECOND = {8: 322, 16: 485, 32: 575, 64: 628, 128: 652, 256: 657, 512: 680, 700: 683}
"""the course's Wide ResNet on one GPU, as its material prints it"""
HERE, PUBLISHED = "this machine, a small CNN", "one GPU, a Wide ResNet"


@cache
def measure() -> Throughput:
    """Time the small task at each batch size, for a few seconds in all."""
    from rueda.study.throughput import study_throughput

    return study_throughput(small_glyphs(), batches=BATCHES, seconds=0.3, progress=False)


def published() -> Throughput:
    """Return the published throughput of a GPU as a record.

    >>> published().saturates_at
    128
    """
    points = [
        ThroughputPoint(batch=batch, images_per_second=speed, spread=0.0, milliseconds_per_update=1e3 * batch / speed)
        for batch, speed in GPU_IMAGES_PER_SECOND.items()
    ]
    return Throughput(task="wide-resnet", points=tuple(points))


def figure(where: str) -> Plot:
    """Draw the throughput against the batch, and where it saturates."""
    found = measure() if where == HERE else published()
    plot = throughput_plot(found)
    plot.title = f"Images per second against the batch: {where}"
    plot.half = False
    return plot
