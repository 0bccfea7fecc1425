"""A pipeline: each worker has one stage of the model, or several, and micro-batches pass through them.

The stages and the schedules are those of ``torch.distributed.pipelining``:

- ``gpipe`` (Huang et al. 2019, arXiv:1811.06965): all forward passes, then all backward passes,
- ``1f1b`` (Narayanan et al. 2019, arXiv:1806.03377): one forward, one backward pass in turn, which keeps the
  activations of as many micro-batches as there are stages,
- ``interleaved`` (Narayanan et al. 2021, arXiv:2104.04473): each worker has several stages that lie apart, which makes
  the bubble smaller (:mod:`rueda.train.parallel.bubble`).

All compute the same sum of gradients, that of the whole batch on one worker. Every worker of a pipeline has the same
batch: the first stage reads its inputs, the last one its targets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rueda.data.nest import select, tensors
from rueda.errors import RecipeError
from rueda.tasks import Task
from rueda.tasks.step import Losses
from rueda.train.parallel.bubble import StageClock
from rueda.train.parallel.known_shapes import shapes_of
from rueda.train.parallel.stages import Stage
from rueda.train.parallel.stand_in import ModelInputs, inputs_of, losses_of

CHUNKS = 2
"""the stages of a worker in the interleaved schedule"""

Weigh = Callable[[Losses, int, int], Tensor]
"""(losses, place of the first example, number of examples) -> what the backward pass begins with"""


def fitting_micro_batches(schedule: str, workers: int, wanted: int, num_examples: int) -> int:
    """Return the largest number of equal micro-batches that a schedule can take, at most ``wanted``.

    Raises:
        RecipeError: there is none; 1F1B needs as many micro-batches as there are stages.

    >>> fitting_micro_batches("1f1b", 2, wanted=8, num_examples=12)
    6
    """
    for number in range(min(wanted, num_examples), 0, -1):
        if num_examples % number:
            continue
        if schedule == "1f1b" and number < workers:
            break
        if schedule == "interleaved" and number % max(1, number // workers):
            continue
        return number
    do = "use gpipe, more micro_batches, or a batch with more divisors"
    expected = f"a batch that {workers} to {wanted} equal micro-batches make up"
    raise RecipeError(f"the pipeline's schedule {schedule}", expected=expected, got=f"{num_examples} examples", do=do)


@contextmanager
def _errors_of_layers() -> Iterator[None]:
    """Raise the error of a layer as it was, and not in torch's words around it, which say what the inputs were."""
    try:
        yield
    except RuntimeError as error:
        if error.__cause__ is not None:
            raise error.__cause__ from None
        raise


class Pipeline:
    """Runs batches through the stages of all workers of a pipeline, which must all call its methods.

    Args:
        task: provides the step.
        stages: all stages of the model; only those of this worker need to have their parameters.
        schedule: ``gpipe``, ``1f1b`` or ``interleaved``.
        micro_batches: the number of micro-batches of a batch; fewer if they would not be equal.
        group: the process group of this pipeline, in the order of the stages; None is that of all workers.
        device: this worker's device.
    """

    def __init__(
        self,
        task: Task,
        stages: Sequence[Stage],
        *,
        schedule: str,
        micro_batches: int,
        group: dist.ProcessGroup | None,
        device: torch.device,
    ) -> None:
        self._task, self._group, self._device = task, group, device
        self.schedule, self.micro_batches = schedule, micro_batches
        self.workers, self.rank = dist.get_world_size(group), dist.get_rank(group)
        self.num_stages, self._stages = len(stages), stages
        self.chunks = self.num_stages // self.workers
        self.own = {number: stages[number] for number in range(self.rank, self.num_stages, self.workers)}
        """the stages of this worker, by number"""
        self.clock: StageClock | None = None
        """measures the stages of this worker while it is set"""
        self._schedules: dict[Any, Any] = {}
        self._batch: Any = None
        self._weigh: Weigh | None = None
        self._results: dict[int, tuple[Losses, Any, int]] = {}

    @property
    def is_first(self) -> bool:
        """Whether this worker has the first stage."""
        return 0 in self.own

    @property
    def is_last(self) -> bool:
        """Whether this worker has the last stage, and so the outputs and losses."""
        return self.num_stages - 1 in self.own

    @property
    def last_rank(self) -> int:
        """The rank within the pipeline that has the last stage."""
        return (self.num_stages - 1) % self.workers

    def accumulate_gradients(self, batch: Any, num_examples: int, weigh: Weigh) -> list[tuple[Losses, Any, int]]:
        """Add the gradients of a batch to those of this worker's parameters.

        Args:
            batch: the batch, the same on all workers of the pipeline.
            num_examples: the number of its examples.
            weigh: makes a scalar of the losses of a micro-batch; called on the last stage.

        Returns:
            On the last stage, the losses of each micro-batch, the micro-batch, and the number of its examples.
        """
        number = fitting_micro_batches(self.schedule, self.workers, self.micro_batches, num_examples)
        return self._run(batch, num_examples, number, weigh)

    def compute_losses(self, batch: Any, num_examples: int) -> list[tuple[Losses, Any, int]]:
        """Compute the losses of a batch without gradients; the result is that of :meth:`accumulate_gradients`."""
        schedule = "gpipe" if self.chunks == 1 else self.schedule
        number = fitting_micro_batches(schedule, self.workers, self.micro_batches, num_examples)
        with torch.no_grad():
            return self._run(batch, num_examples, number, None)

    def _run(self, batch: Any, num_examples: int, number: int, weigh: Weigh | None) -> list[tuple[Losses, Any, int]]:
        self._batch, self._weigh = batch, weigh
        self._results.clear()
        inputs = inputs_of(self._task, batch)
        shapes = tuple((tuple(one.shape), one.dtype) for one in tensors([inputs.arguments, inputs.named]))
        schedule = self._schedule_for((shapes, number, weigh is not None), inputs, number, trains=weigh is not None)
        arguments, named = (inputs.arguments, inputs.named) if self.is_first else ((), {})
        places = torch.arange(num_examples) if self.is_last else None
        timed = self.clock is not None and weigh is not None
        with self.clock.step() if timed and self.clock is not None else nullcontext(), _errors_of_layers():
            if weigh is None:
                schedule.eval(*arguments, target=places, **named)
            else:
                schedule.step(*arguments, target=places, return_outputs=False, **named)
        found = [self._results[start] for start in sorted(self._results)]
        self._results.clear()
        self._batch = None
        return found

    def _schedule_for(self, key: Any, inputs: ModelInputs, number: int, *, trains: bool) -> Any:
        """Return the schedule for inputs of some shapes; a new one finds the shapes between its stages once."""
        if key not in self._schedules:
            from rueda.train.parallel import measured_stage
            from rueda.train.parallel.measured_stage import SCHEDULES

            asks = self.chunks == 1 and self._device.type == "cpu"
            kind = measured_stage.AskingStage if asks else measured_stage.MeasuredStage
            known = shapes_of(self._stages, inputs.arguments, inputs.named, number, trains=trains)
            stages = [
                kind(
                    stage, index, self.num_stages, self._device, group=self._group,
                    input_args=None if known is None else known[index].inputs,
                    output_args=None if known is None else known[index].outputs,
                )
                for index, stage in self.own.items()
            ]  # fmt: skip
            name = self.schedule if trains or self.chunks > 1 else "gpipe"
            whole: Any = stages if self.chunks > 1 or name == "interleaved" else stages[0]
            self._schedules[key] = (SCHEDULES[name](whole, number, loss_fn=self._loss, scale_grads=False), stages)
        schedule, stages = self._schedules[key]
        for stage in stages:
            stage.clock = self.clock if trains else None
        return schedule

    def _loss(self, outputs: Any, places: Tensor) -> Tensor:
        """Compute the loss of a micro-batch on the last stage; the first one is also called to find shapes."""
        clock = nullcontext() if self.clock is None else self.clock.computes("F", self.num_stages - 1, counts=False)
        with clock:
            start, count = int(places[0]), len(places)
            part = select(self._batch, slice(start, start + count))
            result = losses_of(self._task, outputs, part)
            self._results[start] = (result, part, count)
            return result.total() if self._weigh is None else self._weigh(result, start, count)
