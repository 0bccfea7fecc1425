"""Count the work of a training step: its flops, the activations that it keeps, and the bytes of its update.

==================  ==================================================================================================
flops               of matrix products ([m, k] times [k, n] takes 2mkn), convolutions and attention, in the forward and
                    the backward pass. Gradients of frozen parameters and of the inputs are not computed, so they do
                    not count.
saved bytes         of the tensors that the forward pass keeps for the backward pass, seen by autograd's hooks. A tensor
                    that two operations keep, or of which one keeps a view, exists once and counts once; parameters and
                    buffers do not count.
update bytes        of the trainable parameters, their gradients and the optimizer's state.
==================  ==================================================================================================

:func:`count_pass` counts on the *meta* device, where tensors have shapes but no values: this takes no memory, changes
neither the model nor random numbers, and does not use the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase

from rueda.data.nest import map_tensors, num_bytes
from rueda.tasks import Task
from rueda.tasks.step import Losses
from rueda.train.step_module import StepModule
from rueda.world.gathering import gathering_alone


class PassCount(NamedTuple):
    """The work of one forward and one backward pass."""

    flops: int
    saved_bytes: int


class SavedTensors:
    """Adds up the bytes of the tensors that autograd keeps for the backward pass.

    Args:
        own: tensors that exist anyway, such as parameters; they do not count.

    >>> saved, weight, inputs = SavedTensors(), torch.ones(3, requires_grad=True), torch.ones(5, 3)
    >>> with saved.hooks():
    ...     _ = ((inputs * weight).relu() * weight).sum()  # keeps inputs, weight and the result of relu
    >>> saved.num_bytes == 4 * (5 * 3 + 3 + 5 * 3)
    True
    """

    def __init__(self, own: Iterable[Tensor] = ()) -> None:
        self._own = {_storage(tensor) for tensor in own}
        self._seen: dict[int, int] = {}
        self._kept: list[torch.UntypedStorage] = []  # so that no later storage gets the number of a freed one

    def hooks(self) -> saved_tensors_hooks:
        """Return the context in which tensors are seen."""
        return saved_tensors_hooks(self._pack, lambda tensor: tensor)

    def _pack(self, tensor: Tensor) -> Tensor:
        where = _storage(tensor)
        if where not in self._own:
            # A view may be a part of its storage, or repeat it.
            size = min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())
            self._seen[where] = max(size, self._seen.get(where, 0))
            self._kept.append(tensor.untyped_storage())
        return tensor.detach()  # an operation that kept its own output by itself would never be freed

    @property
    def num_bytes(self) -> int:
        """The bytes of all tensors that were kept."""
        return sum(self._seen.values())


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def count_pass(task: Task, model: nn.Module, batch: Any) -> PassCount:
    """Count one forward and backward pass of a task from the shapes of the tensors; no values are computed."""
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    shapes = {f"model.{name}": on_meta(tensor) for name, tensor in named.items()}

    def loss() -> Tensor:
        result: Losses = functional_call(StepModule(task, model), shapes, (map_tensors(on_meta, batch),))
        return result.total()

    with without_statistics(model), gathering_alone():
        return count_backward(loss, shapes.values())


def update_bytes(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Return the bytes of the trainable parameters, of their gradients, and of the state that the optimizer has made.

    >>> model = nn.Linear(20, 30)
    >>> update_bytes(model, torch.optim.SGD(model.parameters(), lr=0.1)) == 2 * 4 * (20 * 30 + 30)
    True
    """
    trained = [one for one in model.parameters() if one.requires_grad]
    return 2 * num_bytes(trained) + num_bytes(list(optimizer.state.values()))


def on_meta(tensor: Tensor) -> Tensor:
    """Return a tensor of the same shape and type without values or memory."""
    return torch.empty_like(tensor, device="meta").requires_grad_(tensor.requires_grad)


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type if it has none."""
    return (str(error).splitlines() or [""])[0] or type(error).__name__


def count_backward(loss: Callable[[], Tensor], own: Iterable[Tensor]) -> PassCount:
    """Compute a loss and its gradients, and count that.

    Args:
        loss: the forward pass.
        own: parameters and buffers, which are not among the saved tensors.
    """
    from torch.utils.flop_counter import FlopCounterMode  # only here: most trainings do not need it

    saved = SavedTensors(own)
    with FlopCounterMode(display=False) as counter:
        with saved.hooks():
            value = loss()
        value.backward()  # type: ignore[no-untyped-call]
    return PassCount(int(counter.get_total_flops()), saved.num_bytes)


@contextmanager
def without_statistics(model: nn.Module) -> Iterator[None]:
    """Let batch norm use its running statistics, since those of all workers cannot be exchanged without values."""
    layers = [layer for layer in model.modules() if isinstance(layer, _NormBase) and layer.training]
    for layer in layers:
        layer.training = False
    try:
        yield
    finally:
        for layer in layers:
            layer.training = True
