"""The weight of an update: what its losses are averaged over, summed over micro-batches and workers.

The gradient of an update is that of (sum of losses * weights) / (sum of weights), over all workers. The second sum is
known only after the last micro-batch has passed through the model, but gradients are computed from the first one on. So
the losses of a worker are divided by a constant, the number of its examples, before the backward pass; the workers'
gradients are averaged as always; and the result is multiplied once by

    examples of all workers / weight of all workers

before it is clipped or used. The weight is summed over the workers while the backward pass runs, and nothing waits for
the device. A task without a step has one loss of weight 1 per example: the factor is 1, and none of this happens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from rueda.errors import RecipeError
from rueda.optim.engine.lanes import local
from rueda.tasks.step import Losses
from rueda.world import World
from rueda.world.device import widest_dtype


class UpdateWeight:
    """Sums the weights of one update.

    >>> weight = UpdateWeight(World())
    >>> for losses in (torch.ones(2, 3), torch.ones(2, 1)):
    ...     weight.add(Losses(losses))
    >>> weight.exchange()
    >>> weight.factor(num_examples=4)
    0.5
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._sum: Tensor | float = 0.0
        self._finish: Callable[[], Tensor] | None = None

    def add(self, result: Losses) -> None:
        """Add the weights of a micro-batch."""
        weight = result.weight()
        self._sum = self._sum + (weight.to(widest_dtype(weight.device)) if isinstance(weight, Tensor) else weight)

    def exchange(self) -> None:
        """Begin to sum over the workers, after the last micro-batch's losses are known."""
        if self._world.size > 1:
            device = self._world.device
            total = torch.as_tensor(self._sum, dtype=widest_dtype(device), device=device)
            self._finish = self._world.begin_all_reduce(total)

    def factor(self, num_examples: int) -> Tensor | float:
        """Return what the averaged gradients are multiplied by, given the examples of all workers.

        It is 0 if all weights are 0: then there is nothing to learn from the update.
        """
        weight = self._sum if self._finish is None else self._finish()
        if isinstance(weight, Tensor):
            return torch.where(weight > 0, num_examples / weight, 0.0)
        return num_examples / weight if weight else 0.0


def rescale(parameters: Sequence[nn.Parameter], factor: Tensor | float) -> None:
    """Multiply the gradients by a factor."""
    gradients = [local(parameter.grad) for parameter in parameters if parameter.grad is not None]
    if not gradients or (not isinstance(factor, Tensor) and factor == 1.0):
        return
    if isinstance(factor, Tensor):
        factor = factor.to(gradients[0].dtype)
    torch._foreach_mul_(gradients, factor)


def with_noise(result: Losses, noise: Tensor | None, start: int, num_examples: int) -> Losses:
    """Multiply the losses of each example by its gradient noise.

    Args:
        result: the losses of a micro-batch.
        noise: a factor for each example of this worker; None changes nothing.
        start: the position of the micro-batch's first example among those of the worker.
        num_examples: the examples of the micro-batch.

    Raises:
        RecipeError: the losses are not in rows of one example each.
    """
    if noise is None:
        return result
    losses = result.losses
    if losses.dim() == 0 or len(losses) != num_examples:
        do = "return them in this shape from the step, or leave gradient_noise out"
        expected = f"losses whose first dimension counts the {num_examples} examples"
        raise RecipeError("gradient_noise", expected=expected, got=f"losses of shape {list(losses.shape)}", do=do)
    mine = noise[start : start + num_examples].reshape(-1, *[1] * (losses.dim() - 1))
    return result._replace(losses=losses * mine)
