"""The measured bubble of real schedules in virtual time: messages carry the time at which they were sent.

Each pass of a stage takes a known time, and no other time passes, so that measured and predicted shares are equal.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harness import workers
from rueda.measure.pipeline_idle import WorkerStep, idle_of
from rueda.records.recipe.parallel_form import Mesh
from rueda.tasks.step import Losses
from rueda.tasks.task import Task
from rueda.train.parallel import bubble, measured_stage, pipeline
from rueda.train.parallel.bubble import StageClock, idle_share
from rueda.train.parallel.building import pipeline_groups
from rueda.train.parallel.stages import Stage
from rueda.world import current

TIME = SimpleNamespace(now=0.0)
CASES: list[tuple[str, int, list[float], list[float]]] = [  # schedule, micro-batches, forward and backward by stage
    ("gpipe", 4, [1.0, 1.0], [2.0, 2.0]),
    ("1f1b", 8, [1.0, 1.0], [2.0, 2.0]),
    ("gpipe", 3, [1.0, 3.0], [2.0, 5.0]),
    ("1f1b", 4, [2.0, 1.0], [3.0, 2.0]),
    ("interleaved", 4, [1.0, 1.0, 1.0, 1.0], [2.0, 2.0, 2.0, 2.0]),
]


class Passing(torch.autograd.Function):
    """Takes a known time forward and backward; its output and its gradient are the time at which it ended."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, forward: float, backward: float) -> Tensor:
        ctx.backward_time = backward
        TIME.now += forward
        return torch.full_like(inputs, TIME.now)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        TIME.now += ctx.backward_time
        return torch.full_like(gradients[0], TIME.now), torch.zeros(1), None, None


class Layer(nn.Module):
    def __init__(self, forward: float, backward: float) -> None:
        super().__init__()
        self.weight, self.times = nn.Parameter(torch.ones(1)), (forward, backward)

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = Passing.apply(inputs, self.weight, *self.times)  # type: ignore[no-untyped-call]
        return found


class VirtualStage(measured_stage.MeasuredStage):
    """A stage that cannot begin before its message has been sent."""

    def forward_one_chunk(self, *arguments: Any, **named: Any) -> Any:
        wait_for(self.args_recv_info[arguments[0]])
        return super().forward_one_chunk(*arguments, **named)

    def backward_one_chunk(self, *arguments: Any, **named: Any) -> Any:
        wait_for(self.grad_recv_info[arguments[0]])
        return super().backward_one_chunk(*arguments, **named)


class VirtualAskingStage(measured_stage.AskingStage, VirtualStage):
    """The same of a stage that asks for its messages ahead."""


def wait_for(messages: Any) -> None:
    for message in messages:
        if message.buffer is not None:
            TIME.now = max(TIME.now, float(message.buffer.detach().max()))


def total(result: Losses, start: int, count: int) -> Tensor:
    return result.total()


@pytest.mark.parametrize(("schedule", "micro_batches", "forward", "backward"), CASES)
@workers(2)
def test_the_measured_bubble_is_the_predicted_one(
    schedule: str, micro_batches: int, forward: list[float], backward: list[float]
) -> None:
    world, nothing = current(), SimpleNamespace()
    task: Any = Task(name="times", model=nn.Identity, train=nothing, test=nothing, loss=lambda out, wanted: out[:, 0])  # type: ignore[arg-type]
    batch, chunks = (torch.ones(24, 1), torch.ones(24, 1)), len(forward) // 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bubble, "time", SimpleNamespace(perf_counter=lambda: TIME.now))
        patch.setattr(measured_stage, "MeasuredStage", VirtualStage)
        patch.setattr(measured_stage, "AskingStage", VirtualAskingStage)
        made = pipeline.Pipeline(
            task, [Stage([Layer(*times)]) for times in zip(forward, backward, strict=True)], schedule=schedule,
            micro_batches=micro_batches, group=pipeline_groups(world, Mesh(pipeline=2)).pipeline, device=world.device,
        )  # fmt: skip
        made.accumulate_gradients(batch, 24, total)  # finds the shapes
        made.clock = clock = StageClock()
        TIME.now = 0.0
        made.accumulate_gradients(batch, 24, total)
    own = WorkerStep(sum(clock.computing.values()), clock.step_seconds, clock.mean_seconds(), micro_batches)
    steps: list[WorkerStep] = world.all_gather_object(own)
    measured, predicted = idle_of(steps, schedule, chunks)
    assert measured == pytest.approx(predicted, rel=1e-6)
    if len({*forward}) == 1:
        assert measured == pytest.approx(idle_share(2, micro_batches, chunks), rel=1e-6)
