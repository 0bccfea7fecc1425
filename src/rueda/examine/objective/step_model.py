"""A task with a step as an objective: the weighted mean of its losses as a function of the parameters.

An objective evaluates ``losses(model(inputs), targets)`` on slices of tensors. The examples of a task with a step may
have any structure, so here the *inputs* are only their numbers. The model that the objective sees collates these
examples, runs the step, and returns for each of the n examples the n-th part of

    sum of losses * weights  *  number of all examples / weight of all examples

whose mean over all examples is the loss that the training minimises. It has the parameters, buffers and names of the
task's own model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Subset

from rueda.data import Arrays
from rueda.data.nest import tensors
from rueda.tasks import Losses, Task
from rueda.train.loaders import evaluation_loader, without_weights
from rueda.world import World
from rueda.world.gathering import gathering_alone


class StepModel(nn.Module):
    """Computes the losses of numbered examples; :meth:`numbers` are its inputs.

    Args:
        task: provides the step.
        model: its model, whose parameters and buffers this module shares, under the same names.
    """

    def __init__(self, task: Task, model: nn.Module) -> None:
        super().__init__()
        self._modules, self._parameters, self._buffers = model._modules, model._parameters, model._buffers
        self._inner, self._task = [model], task
        self._sets: list[tuple[Any, float]] = []  # the examples of each split, and examples / weight
        self._collated: dict[tuple[int, int, int], Any] = {}

    def train(self, mode: bool = True) -> StepModel:
        """Set the mode of the task's model as well, which shares the submodules."""
        self._inner[0].training = mode
        return super().train(mode)

    def numbers(self, data: Any) -> tuple[Tensor, Tensor]:
        """Add a set of examples; return their numbers [N, 2], and as targets a checksum of their contents [N]."""
        from rueda.examine.objective.objective import checksum

        self._sets.append((data, 1.0))
        which, count = len(self._sets) - 1, len(data)
        numbers = torch.stack([torch.full((count,), which), torch.arange(count)], dim=1)
        weight, sums = 0.0, []
        was_training = self.training
        self.eval()
        with torch.no_grad():
            for part in torch.split(numbers, 256):
                weight += float(self._result(part).weight())
                sums.append(checksum(tensors(self._batch(part))))
        self.train(was_training)
        self._sets[which] = data, count / weight if weight else 1.0
        total = int(checksum([torch.tensor([int(one, 16) >> 1 for one in sums])]), 16) >> 1
        return numbers, torch.full((count,), total)

    def forward(self, numbers: Tensor) -> Tensor:
        """Return the equal parts of each example in the weighted sum of the losses."""
        total = self._result(numbers).total() * self._sets[int(numbers[0, 0])][1]
        return (total / len(numbers)).expand(len(numbers))

    def _result(self, numbers: Tensor) -> Losses:
        with gathering_alone():
            return self._task.run_step(self._inner[0], self._batch(numbers))

    def _batch(self, numbers: Tensor) -> Any:
        """Collate examples with consecutive numbers, and keep the batch: an objective asks for the same ones again."""
        which, first, last = int(numbers[0, 0]), int(numbers[0, 1]), int(numbers[-1, 1])
        if (which, first, last) not in self._collated:
            data, chosen, like = self._sets[which][0], range(first, last + 1), next(self.parameters())
            part = data.subset(chosen) if isinstance(data, Arrays) else Subset(data, chosen)
            world = World(device=like.device)
            loader = evaluation_loader(part, len(chosen), world, like.dtype, self._task.collate)
            with torch.inference_mode(False):  # the batch is kept, also for gradients
                self._collated[which, first, last] = without_weights(next(iter(loader)))
        return self._collated[which, first, last]


def given_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the outputs of a :class:`StepModel`, which are losses already."""
    return outputs
