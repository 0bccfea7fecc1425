"""A module whose forward pass is the step of a task, which is what DistributedDataParallel wraps.

DistributedDataParallel prepares the all-reduce of the gradients when *its* forward pass is called. A step may call any
method of the model (``model.encode``), so the step as a whole is that forward pass. State dicts are those of the model
itself, without this wrapper's names.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from rueda.data.nest import map_tensors
from rueda.tasks import Task
from rueda.tasks.step import Losses
from rueda.train.activation_checkpointing import Recomputation
from rueda.train.layout import to_memory_format


class StepModule(nn.Module):
    """Computes the losses of a batch.

    Args:
        task: provides the step or the loss.
        model: the model; it may be compiled.
        memory_format: the memory format of batches of images.
        parameters: what this module trains, if that is a part of the model only, as in a phase of a GAN.
        recomputed: compute the layers again in the backward pass (:mod:`rueda.train.activation_checkpointing`).
    """

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        memory_format: torch.memory_format = torch.contiguous_format,
        parameters: Sequence[nn.Parameter] | None = None,
        *,
        recomputed: bool = False,
    ) -> None:
        super().__init__()
        self._task, self._memory_format = task, memory_format
        self._recomputation = Recomputation(model, task.layers, task=task.name) if recomputed else None
        if parameters is None:
            self.model = model
        else:  # the others are not registered, and so not reduced
            self.trained = nn.ParameterList(parameters)
        self._called = [model]

    def with_model(self, model: nn.Module) -> StepModule:
        """Return the step of another model, such as a copy."""
        return StepModule(self._task, model, self._memory_format, recomputed=self._recomputation is not None)

    def forward(self, batch: Any) -> Losses:
        """Run the task's step."""
        with nullcontext() if self._recomputation is None else self._recomputation.of_forward_pass():
            return self._task.run_step(self._called[0], arranged(batch, self._memory_format))


def arranged(batch: Any, memory_format: torch.memory_format) -> Any:
    """Convert the images of a batch to a memory format; of a pair (inputs, targets), those of the inputs."""
    if type(batch) in (tuple, list) and len(batch) == 2 and isinstance(batch[0], Tensor):
        return to_memory_format(batch[0], memory_format), batch[1]
    if memory_format is torch.contiguous_format:
        return batch
    return map_tensors(lambda tensor: to_memory_format(tensor, memory_format), batch)
