"""Everything that lab 2 measures on two workers, in one start of their processes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from rueda import jobs
from rueda.jobs import Job
from rueda.labs.lab_2.iteration import Iteration, measure_iteration
from rueda.labs.lab_2.parallelism import PipelineRun, Traffic, measure_pipelines, measure_traffic
from rueda.measure.communication import measure_communication
from rueda.records.profile import Communication
from rueda.world import World, open_world


@dataclass(frozen=True, kw_only=True)
class MeasureRequest:
    """What to measure, and how long."""

    batches: tuple[int, ...] = (16, 32, 64, 128, 256, 512)
    widths: tuple[int, ...] = (64, 128, 256)
    micro_batches: tuple[int, ...] = (1, 2, 4, 8)
    pipeline_batch: int = 512
    pipeline_width: int = 512
    images: int = 128
    """of each worker, in an iteration"""
    repeats: int = 60
    sizes: tuple[int, ...] = (4, 1 << 12, 1 << 16, 1 << 18, 1 << 20, 1 << 22)
    """bytes of the measured all-reduces"""
    seconds: float = 0.5
    """for the all-reduces"""


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """What was measured on this machine."""

    traffic: tuple[Traffic, ...]
    pipelines: tuple[PipelineRun, ...]
    alone: Iteration
    """an iteration of one worker, while the other waits"""
    together: Iteration
    communication: Communication
    threads: int
    """of each worker"""

    def bytes_of(self, way: str, batch: int, width: int) -> Traffic:
        """Return the traffic of one way at one batch and width."""
        return next(one for one in self.traffic if (one.way, one.batch, one.width) == (way, batch, width))

    def pipeline(self, micro_batches: int) -> PipelineRun:
        """Return the pipeline with so many micro-batches."""
        return next(run for run in self.pipelines if run.micro_batches == micro_batches)


def measure(request: MeasureRequest | None = None) -> Measurements:
    """Start two workers on this machine and measure."""
    where = "rueda.labs.lab_2.measurements:measure_here"
    return jobs.run(Job(function=where, request=request or MeasureRequest(), answer=Measurements), workers=2)


@cache
def measured() -> Measurements:
    """Return what :func:`measure` finds; it is measured once in a process."""
    return measure()


def measure_here(request: MeasureRequest) -> Measurements:
    """Measure, as one of two workers."""
    import torch

    world = open_world(device="cpu")
    images, repeats = request.images, request.repeats
    alone = world.on_main(lambda: measure_iteration(World(device=world.device), batch=images, repeats=repeats))
    return Measurements(
        alone=alone,
        together=measure_iteration(world, batch=images, repeats=repeats),
        traffic=tuple(measure_traffic(world, request.batches, request.widths)),
        pipelines=tuple(
            measure_pipelines(world, request.micro_batches, batch=request.pipeline_batch, width=request.pipeline_width)
        ),
        communication=measure_communication(world, sizes=request.sizes, seconds=request.seconds),
        threads=torch.get_num_threads(),
    )
