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
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase

from rueda.data.nest import map_tensors, num_bytes
from rueda.optim.engine.lanes import local
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
    ...     total = ((inputs * weight).relu() * weight).sum()  # keeps inputs, weight and the result of relu
    >>> saved.num_bytes == saved.peak_bytes == saved.kept_bytes == 4 * (5 * 3 + 3 + 5 * 3)
    True
    >>> del total
    >>> saved.num_bytes == saved.peak_bytes, saved.kept_bytes
    (True, 0)
    """

    def __init__(self, own: Iterable[Tensor] = ()) -> None:
        self._own = {_storage(tensor) for tensor in own}
        self._kept: dict[int, _KeptStorage] = {}
        self.num_bytes = 0
        """the bytes of all tensors that were kept at any time"""
        self.kept_bytes = 0
        """those of the tensors that are kept now"""
        self.peak_bytes = 0
        """the most that were kept at once, such as those of the micro-batches in flight in a pipeline"""

    def leave_out(self, tensors: Iterable[Tensor]) -> None:
        """Leave out more tensors that exist anyway, such as parameters that sharding has gathered."""
        self._own.update(_storage(tensor) for tensor in tensors)

    def hooks(self) -> saved_tensors_hooks:
        """Return the context in which tensors are seen."""
        return saved_tensors_hooks(self._pack, lambda held: held.tensor)

    def times_kept(self, tensor: Tensor) -> int:
        """Return how often a tensor, or one with the same storage, is kept now."""
        found = self._kept.get(_storage(tensor))
        return 0 if found is None else found.num_holders

    def _pack(self, tensor: Tensor) -> _Held:
        where = _storage(tensor)
        tensor = tensor.detach()  # an operation that kept its own output by itself would never be freed
        if where in self._own:
            return _Held(tensor)
        found = self._kept.setdefault(where, _KeptStorage())
        before = found.num_bytes
        start = found.add(local(tensor))
        self.num_bytes += found.num_bytes - before
        self.kept_bytes += found.num_bytes - before
        self.peak_bytes = max(self.peak_bytes, self.kept_bytes)
        return _Held(tensor, partial(self._release, where, start))

    def _release(self, where: int, start: int) -> None:
        found = self._kept[where]
        before = found.num_bytes
        found.remove(start)
        self.kept_bytes -= before - found.num_bytes
        if found.num_holders == 0:
            del self._kept[where]


class _KeptStorage:
    """A storage of which operations keep all or parts: query, key and value side by side, or rows of a batch."""

    def __init__(self) -> None:
        self._nbytes = 0
        self._parts: dict[int, list[int]] = {}
        """by place, the sizes that operations keep of it: a view may repeat its storage"""

    @property
    def num_holders(self) -> int:
        """How many operations keep a part."""
        return sum(map(len, self._parts.values()))

    @property
    def num_bytes(self) -> int:
        """The bytes that are kept."""
        return min(sum(map(max, self._parts.values())), self._nbytes)

    def add(self, tensor: Tensor) -> int:
        """Add a view, and return its place."""
        start = int(tensor.storage_offset())
        self._parts.setdefault(start, []).append(tensor.numel() * tensor.element_size())
        self._nbytes = tensor.untyped_storage().nbytes()
        return start

    def remove(self, start: int) -> None:
        """Remove one view at a place; the last one to go decides when the place is free."""
        sizes = self._parts[start]
        sizes.remove(min(sizes))
        if not sizes:
            del self._parts[start]


class _Held:
    """A tensor that autograd keeps; it tells when autograd lets it go."""

    def __init__(self, tensor: Tensor, released: Callable[[], None] | None = None) -> None:
        self.tensor, self._released = tensor, released

    def __del__(self) -> None:
        if self._released is not None:
            self._released()


def _storage(tensor: Tensor) -> int:
    return int(local(tensor.detach()).untyped_storage()._cdata)


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


@contextmanager
def without_values(model: nn.Module) -> Iterator[list[Tensor]]:
    """Replace the parameters and buffers inside the block by those of the *meta* device, and yield them.

    ``torch.func.functional_call`` would leave them there where one module has two places in the model.
    """
    kept: list[tuple[dict[str, Any], str, Tensor]] = []
    made: dict[int, Tensor] = {}
    for module in model.modules():
        places: list[tuple[dict[str, Any], Callable[[Tensor], Tensor]]] = [
            (module._parameters, _empty_parameter), (module._buffers, on_meta)
        ]  # fmt: skip
        for own, make in places:
            for name, tensor in own.items():
                if tensor is not None:
                    kept.append((own, name, tensor))
                    made.setdefault(id(tensor), make(tensor))
    for own, name, tensor in kept:
        own[name] = made[id(tensor)]
    try:
        yield list(made.values())
    finally:
        for own, name, tensor in kept:
            own[name] = tensor


def _empty_parameter(parameter: Tensor) -> nn.Parameter:
    return nn.Parameter(on_meta(parameter).detach(), requires_grad=parameter.requires_grad)


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
