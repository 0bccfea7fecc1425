"""torch's pipeline stage, with a clock around its passes, and torch's schedules by their names in a recipe.

With Gloo a message is sent once its receiver has asked for it. torch's schedules ask when the message is needed; the
sender computes by then, and the thread that answers waits for its core: milliseconds for each micro-batch, where the
message itself takes 0.2. So stages on CPUs ask for all messages of a step at its beginning (:class:`AskingStage`).

``torch.distributed.pipelining`` imports torch's compiler, which takes two to three times as long as torch itself, so
only a training that is a pipeline may import this file.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from rueda.train.parallel.bubble import StageClock

SCHEDULES: dict[str, Any] = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B, "interleaved": ScheduleInterleaved1F1B}


class MeasuredStage(PipelineStage):
    """A stage of torch's pipeline that measures its passes."""

    clock: StageClock | None = None

    def _compute_outputs(self, *arguments: Any, module: Any, **named: Any) -> Any:
        """Find the shapes of the outputs in a pass of its own, which must not change the buffers."""
        module.infers_shapes = True
        return super()._compute_outputs(*arguments, module=module, **named)

    def forward_one_chunk(self, *arguments: Any, **named: Any) -> Any:
        """Run the forward pass of a micro-batch."""
        with nullcontext() if self.clock is None else self.clock.computes("F", self.stage_index):
            return super().forward_one_chunk(*arguments, **named)

    def backward_one_chunk(self, *arguments: Any, **named: Any) -> Any:
        """Run the backward pass of a micro-batch."""
        with nullcontext() if self.clock is None else self.clock.computes("B", self.stage_index):
            return super().backward_one_chunk(*arguments, **named)


class AskingStage(MeasuredStage):
    """A stage that asks for all its inputs when it needs the first, and for all gradients likewise.

    Messages between two workers arrive in the order in which they are asked for, so this is for schedules in which a
    worker gets either inputs or gradients from another one: those with one stage a worker. On GPUs the operations
    between two workers run one after the other, so that one which is asked for too early stops those after it.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._asked: dict[tuple[str, int], list[dist.Work]] = {}

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Ask for all inputs of a step; the pass waits for its own."""
        return self._ask("F", fwd_chunk_id, super().get_fwd_recv_ops)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Ask for all gradients of a step; the pass waits for its own."""
        return self._ask("B", bwd_chunk_id, super().get_bwd_recv_ops)

    def forward_one_chunk(self, *arguments: Any, **named: Any) -> Any:
        """Wait for the inputs, and run the forward pass of a micro-batch."""
        self._wait("F", arguments[0])
        return super().forward_one_chunk(*arguments, **named)

    def backward_one_chunk(self, *arguments: Any, **named: Any) -> Any:
        """Wait for the gradients, and run the backward pass of a micro-batch."""
        self._wait("B", arguments[0])
        return super().backward_one_chunk(*arguments, **named)

    def _ask(self, kind: str, chunk: int, messages: Callable[[int], list[dist.P2POp]]) -> list[dist.P2POp]:
        if chunk == 0:
            for number in range(len(self.args_recv_info)):
                operations = messages(number)
                self._asked[kind, number] = dist.batch_isend_irecv(operations) if operations else []
        return []

    def _wait(self, kind: str, chunk: int) -> None:
        for work in self._asked.pop((kind, chunk), []):
            work.wait()
