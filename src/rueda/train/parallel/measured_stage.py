"""torch's pipeline stage, with a clock around its passes, and torch's schedules by their names in a recipe.

``torch.distributed.pipelining`` imports torch's compiler, which takes two to three times as long as torch itself, so
only a training that is a pipeline may import this file.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from rueda.train.parallel.bubble import StageClock

SCHEDULES: dict[str, Any] = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B, "interleaved": ScheduleInterleaved1F1B}


class MeasuredStage(PipelineStage):
    """A stage of torch's pipeline that measures its passes."""

    clock: StageClock | None = None

    def forward_one_chunk(self, *arguments: Any, **named: Any) -> Any:
        """Run the forward pass of a micro-batch."""
        with nullcontext() if self.clock is None else self.clock.computes("F", self.stage_index):
            return super().forward_one_chunk(*arguments, **named)

    def backward_one_chunk(self, *arguments: Any, **named: Any) -> Any:
        """Run the backward pass of a micro-batch."""
        with nullcontext() if self.clock is None else self.clock.computes("B", self.stage_index):
            return super().backward_one_chunk(*arguments, **named)
