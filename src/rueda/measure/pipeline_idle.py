"""The bubble of a pipeline, measured: the share of a step in which its workers wait for each other.

In each step every worker adds up the seconds of its forward and backward passes; the step takes as long as the slowest
worker. Beside this stands what the schedule costs by itself: its order, executed with the measured seconds of a pass of
each stage (:func:`rueda.train.parallel.bubble.simulate`). The difference is what messages and Python cost.
"""

from __future__ import annotations

import statistics
from typing import NamedTuple

from rueda.train.parallel.bubble import StageClock, predicted_step
from rueda.train.parallel.pipeline_updater import PipelineUpdater
from rueda.train.training import Training
from rueda.world.device import wait_for


class PipelineIdle(NamedTuple):
    """How long the workers of a pipeline wait, as shares of a step, on average over the workers."""

    measured: float
    """median over the steps"""
    predicted: float
    """of the same schedule with the measured seconds of the passes of each stage, and nothing else; also the median"""
    micro_batches: int


class WorkerStep(NamedTuple):
    """What one worker saw of one step."""

    busy: float
    span: float
    seconds: dict[tuple[str, int], float]
    """mean of a pass, by kind and stage"""
    micro_batches: int


def measure_idle(training: Training, *, rate: float, num_steps: int = 9) -> PipelineIdle:
    """Measure the bubble of a training in pipelines; every worker must call it.

    Args:
        training: it makes ``num_steps`` steps.
        rate: their learning rate.
        num_steps: how many steps are measured.
    """
    updater, world = training.updater, training.world
    assert isinstance(updater, PipelineUpdater)
    pipeline, own = updater.pipeline, []
    for _ in range(num_steps):
        clock = pipeline.clock = StageClock()
        wait_for(world.device)
        world.barrier()  # so that all workers of a pipeline begin at the same time
        training.step(rate=rate)
        pipeline.clock = None
        micro_batches = max(clock.counts.values())
        own.append(WorkerStep(sum(clock.computing.values()), clock.step_seconds, clock.mean_seconds(), micro_batches))
    first = world.rank - pipeline.rank
    steps = list(zip(*world.all_gather_object(own)[first : first + pipeline.workers], strict=True))
    shares = [idle_of(list(step), pipeline.schedule, pipeline.chunks) for step in steps]
    mine = [statistics.median(share) for share in zip(*shares, strict=True)]
    measured, predicted = (statistics.mean(each) for each in zip(*world.all_gather_object(mine), strict=True))
    return PipelineIdle(measured, predicted, own[-1].micro_batches)


def idle_of(workers: list[WorkerStep], schedule: str, chunks: int) -> tuple[float, float]:
    """Return the measured and the predicted idle share of one step from what each worker of a pipeline saw.

    >>> first = WorkerStep(busy=6, span=9, seconds={("F", 0): 1, ("B", 0): 2}, micro_batches=2)
    >>> last = WorkerStep(busy=6, span=8, seconds={("F", 1): 1, ("B", 1): 2}, micro_batches=2)
    >>> [round(share, 3) for share in idle_of([first, last], "gpipe", 1)]
    [0.333, 0.333]
    """
    span = max(one.span for one in workers)
    seconds = {key: value for one in workers for key, value in one.seconds.items()}
    expected = predicted_step(schedule, len(workers), workers[0].micro_batches, chunks, seconds)
    return 1 - statistics.mean(one.busy for one in workers) / span, statistics.mean(expected.idle)
