"""Throughput against the local batch: measured on this machine, and as published for a GPU."""

from __future__ import annotations

from functools import cache

from rueda.labs.lab_3.small_task import small_glyphs
from rueda.labs.showing import Source
from rueda.records.throughput import Throughput, ThroughputPoint
from rueda.report.figures.throughput import throughput as throughput_plot
from rueda.report.plot import Plot

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
GPU_IMAGES_PER_SECOND = {8: 322, 16: 485, 32: 575, 64: 628, 128: 652, 256: 657, 512: 680, 700: 683}
"""the course's Wide ResNet on one GPU, as its material prints it"""
PUBLISHED = Source(
    live="Published: printed in the course's material, for one GPU.",
    static="Published: printed in the course's material, for one GPU.",
)


@cache
def measure(width: int) -> Throughput:
    """Time the small task at each batch size, for a few seconds in all, with so many channels in its network."""
    from rueda.study.throughput import study_throughput

    settings = [f"model.width={width}"]
    return study_throughput(small_glyphs(), batches=BATCHES, settings=settings, seconds=0.25, progress=False)


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


def published_figure() -> Plot:
    """Draw the published throughput of a GPU."""
    return _figure(published(), "a Wide ResNet on one GPU")


def measured_figure(width: int) -> Plot:
    """Draw the throughput of this machine with a small network of a width."""
    return _figure(measure(width), "a small CNN on this machine")


def _figure(found: Throughput, what: str) -> Plot:
    plot = throughput_plot(found)
    plot.title, plot.half = f"Images per second against the batch: {what}", False
    return plot
