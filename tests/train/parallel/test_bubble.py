"""The predicted bubble: orders that are torch's own, and a simulation that agrees with the formulas."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from harness import workers
from rueda.records.recipe.parallel_form import Mesh
from rueda.tasks.step import Losses
from rueda.tasks.task import Task
from rueda.train.parallel.bubble import Action, StageClock, idle_share, order_of, predicted_step, simulate
from rueda.train.parallel.building import pipeline_groups
from rueda.train.parallel.pipeline import Pipeline
from rueda.train.parallel.stages import Stage
from rueda.world import current

CASES = [(2, 4, 2), (2, 8, 1), (3, 6, 2), (3, 12, 3), (4, 8, 2), (4, 4, 3), (8, 32, 2)]


class Recorder(StageClock):
    """Notes what a worker computes, in its order."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Action] = []

    @contextmanager
    def computes(self, kind: str, stage: int, *, counts: bool = True) -> Iterator[None]:
        if counts:
            self.seen.append(Action(kind, stage, sum(one[:2] == (kind, stage) for one in self.seen)))
        yield


def total(result: Losses, start: int, count: int) -> torch.Tensor:
    return result.total()


@workers(2)
def test_the_orders_are_those_that_torch_executes() -> None:
    world = current()
    group = pipeline_groups(world, Mesh(pipeline=2)).pipeline
    nothing: Any = None
    task = Task(name="chain", model=nn.Identity, train=nothing, test=nothing, loss=lambda out, wanted: out[:, 0])
    batch = (torch.ones(24, 1), torch.ones(24, 1))
    for schedule, micro_batches, chunks in (
        ("gpipe", 3, 1), ("1f1b", 2, 1), ("1f1b", 6, 1), ("interleaved", 2, 2), ("interleaved", 4, 2),
        ("interleaved", 8, 3),
    ):  # fmt: skip
        stages = [Stage([nn.Linear(1, 1)]) for _ in range(2 * chunks)]
        pipeline = Pipeline(
            task, stages, schedule=schedule, micro_batches=micro_batches, group=group, device=world.device
        )
        pipeline.accumulate_gradients(batch, 24, total)  # finds the shapes
        pipeline.clock = recorder = Recorder()
        pipeline.accumulate_gradients(batch, 24, total)
        assert recorder.seen == order_of(schedule, 2, micro_batches, chunks)[world.rank], (schedule, micro_batches)


@pytest.mark.parametrize(("length", "micro_batches", "chunks"), CASES)
def test_equal_stages_idle_as_the_formulas_say(length: int, micro_batches: int, chunks: int) -> None:
    for schedule, pieces in (("gpipe", 1), ("1f1b", 1), ("interleaved", chunks)):
        stages = length * pieces
        step = simulate(order_of(schedule, length, micro_batches, pieces), [1.0] * stages, [2.0] * stages)
        assert step.idle == pytest.approx([idle_share(length, micro_batches, pieces)] * length)


def test_unequal_stages() -> None:
    # Two stages of 1 and 3 seconds, 2 micro-batches, no backward time: 1 + 3 + 3, of which the first works 2.
    step = simulate(order_of("gpipe", 2, 2), [1.0, 3.0], [0.0, 0.0])
    assert step.seconds == 7 and step.busy == [2.0, 6.0]
    seconds = {("F", 0): 1.0, ("F", 1): 3.0, ("B", 0): 2.0, ("B", 1): 6.0}
    assert predicted_step("1f1b", 2, 4, 1, seconds).seconds == 1 + 4 * 9 + 2  # the slow stage never waits in between
    assert simulate(order_of("gpipe", 2, 1), [1.0, 1.0], [1.0, 1.0], transfer=0.5).seconds == 5


def test_a_clock_adds_up_what_a_stage_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 1.0, 3.0, 5.0, 6.0, 10.0])  # a step of 10 seconds; 2 in a forward pass, 1 in its loss
    monkeypatch.setattr("rueda.train.parallel.bubble.time.perf_counter", lambda: next(now))
    clock = StageClock()
    with clock.step():
        with clock.computes("F", 0):
            pass
        with clock.computes("F", 0, counts=False):
            pass
    assert clock.idle == pytest.approx(0.7) and clock.mean_seconds() == {("F", 0): 3.0}
