"""The step of a task: from a model and a batch to losses, and the weights over which the losses are averaged.

The loss of an update is a weighted mean over everything that all workers and all micro-batches have computed::

    sum of losses * weights / sum of weights

The weights are what is averaged over: 1 for each token that is no padding, for each pixel with a label, for each pair.
A step returns the losses themselves and not their mean, since the mean of several workers' means is another number
whenever they have different numbers of tokens. A language model with batches of padded sentences::

    def step(model, batch):
        logits = model(batch["tokens"][:, :-1])                                   # [B, T, V]
        targets = batch["tokens"][:, 1:]                                          # [B, T]
        losses = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
        return losses, batch["mask"][:, 1:]                                       # both [B, T]

Without a step of its own, a task takes batches of (inputs, targets) and computes ``loss(model(inputs), targets)``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from rueda.data.nest import num_examples
from rueda.errors import TaskError


class Losses(NamedTuple):
    """What a step returns: losses, their weights, and the outputs that metrics read.

    >>> import torch
    >>> Losses(torch.tensor([1.0, 3.0]), torch.tensor([1.0, 0.0])).total()
    tensor(1.)
    """

    losses: Tensor
    """of any shape: one for each example, token, pixel or pair"""
    weights: Tensor | None = None
    """of the same shape: what the losses are averaged over; None gives every loss the weight 1"""
    outputs: Any = None
    """what metrics read, such as the model's predictions"""

    def total(self) -> Tensor:
        """Return the sum of losses * weights, a scalar with the gradient of the losses."""
        return self.losses.sum() if self.weights is None else (self.losses * self.weights).sum()

    def detached(self) -> Losses:
        """Return the same losses without their gradient."""
        return self._replace(losses=self.losses.detach())

    def weight(self) -> Tensor | int:
        """Return the sum of the weights; without weights, the number of losses, which does not wait for the device."""
        return self.losses.numel() if self.weights is None else self.weights.sum()


Step = Callable[[nn.Module, Any], "Tensor | tuple[Tensor, Tensor | None] | Losses"]
"""(model, batch) -> losses; or losses and weights; or :class:`Losses`"""


def as_losses(found: object, task: str) -> Losses:
    """Return what a step has returned as :class:`Losses`.

    Args:
        found: losses, a pair of losses and weights, or Losses.
        task: the name of the task, for messages.

    Raises:
        TaskError: it is none of them; or a mean without a weight, which cannot be averaged with those of others.
    """
    what = f"the step of task {task}"
    if isinstance(found, Tensor):
        found = Losses(found)
    elif type(found) in (tuple, list) and len(found) in (2, 3):  # type: ignore[arg-type]
        found = Losses(*found)  # type: ignore[misc]
    if not isinstance(found, Losses) or not isinstance(found.losses, Tensor):
        kind = type(found.losses if isinstance(found, Losses) else found).__name__
        do = "return the tensor of losses, or (losses, weights)"
        raise TaskError(what, expected="losses, or (losses, weights), as tensors", got=kind, do=do)
    losses, weights = found.losses, found.weights
    if not losses.is_floating_point():
        expected, do = "losses of a floating-point type", "return the losses first"
        raise TaskError(what, expected=expected, got=str(losses.dtype).removeprefix("torch."), do=do)
    if weights is None:
        if losses.dim() == 0:
            expected = "the losses themselves, since a mean of means over workers is wrong"
            do = 'use reduction="none", or return the mean with its weight: (loss, number of tokens)'
            raise TaskError(what, expected=expected, got="one number", do=do)
        return found
    if not isinstance(weights, Tensor) or weights.shape != losses.shape:
        got = list(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
        do = "return weights of the losses' shape; what metrics read comes third: Losses(losses, weights, outputs)"
        raise TaskError(f"{what}, weights", expected=f"a tensor of shape {list(losses.shape)}", got=got, do=do)
    if weights.requires_grad or weights.dtype != losses.dtype:
        found = found._replace(weights=weights.detach().to(losses.dtype))
    return found


def split_pair(batch: Any, task: str) -> tuple[Any, Any]:
    """Return the inputs and targets of a batch; refuse batches of another structure, such as a dict of two keys."""
    if type(batch) in (tuple, list) and len(batch) == 2:
        return batch[0], batch[1]
    got = f"a dict of {', '.join(map(str, batch))}" if isinstance(batch, Mapping) else _kind(batch)
    do = "give the task a step of its own: step=lambda model, batch: ..."
    raise TaskError(f"a batch of task {task}", expected="(inputs, targets), since it has no step", got=got, do=do)


def _kind(batch: object) -> str:
    name = type(batch).__name__
    return f"a {name} of {len(batch)}" if isinstance(batch, (tuple, list)) else name


def apply_model(model: nn.Module, inputs: Any) -> Any:
    """Call a model with its inputs: one argument, or several from a tuple (by position) or a dict (by name).

    >>> import torch
    >>> apply_model(nn.Bilinear(1, 1, 1), (torch.ones(4, 1), torch.ones(4, 1))).shape
    torch.Size([4, 1])
    """
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if type(inputs) in (tuple, list) else model(inputs)


def check_per_example(losses: object, targets: Any, task: str) -> Tensor:
    """Return the losses, [B]; refuse a loss that has averaged or summed them.

    Args:
        losses: what the task's loss returned.
        targets: the targets of the batch, which tell the number of examples.
        task: the name of the task, for messages.
    """
    count = targets.shape[0] if isinstance(targets, Tensor) and targets.dim() else num_examples(targets)
    if not isinstance(losses, Tensor) or losses.shape != (count,):
        expected, do = f"one value per example, shape [{count}]", 'use reduction="none", or give the task a step'
        got = list(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise TaskError(f"the loss of task {task}", expected=expected, got=got, do=do)
    return losses
