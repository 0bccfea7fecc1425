"""Change the parameters of a model temporarily, and restore them bit for bit.

Inside a ``with`` block, every parameter and buffer of the model refers to a copy, in the memory format and on the
device that suit the computation. The original tensors are never written, so restoring them is an exchange of
references: it needs no arithmetic that could round, and it also happens after an exception. Training modes and
``requires_grad`` are restored as well; ``.grad`` is not changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rueda.errors import ExamineError
from rueda.world.device import float64_device

_in_use: WeakSet[nn.Module] = WeakSet()


class TemporaryParameters:
    """The floating-point parameters of a model, which can be set inside a ``with`` block; blocks may be nested.

    Args:
        model: any module; the one inside DistributedDataParallel is taken.
        device: where to compute; by default where the model is. A device without float64 leaves it to the CPU.
        order: the memory format of 4-d parameters.

    >>> model = nn.Linear(2, 1)
    >>> before = model.weight.data_ptr()
    >>> with TemporaryParameters(model) as parameters:
    ...     parameters.move([[torch.ones(1, 2), torch.zeros(1)]], [0.5])
    ...     moved = model.weight.data_ptr() != before
    >>> moved, model.weight.data_ptr() == before
    (True, True)
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        device: torch.device | str | None = None,
        order: torch.memory_format = torch.contiguous_format,
    ) -> None:
        self.model = model.module if isinstance(model, DistributedDataParallel) else model
        named = [(name, one) for name, one in self.model.named_parameters() if one.is_floating_point()]
        if not named:
            raise ExamineError(
                "the model", expected="parameters to move", got="none", do="pass the trained torch.nn.Module"
            )
        self.names = [name for name, _ in named]
        self.owned = [one for _, one in named]
        self.device = float64_device(torch.device(device) if device is not None else self.owned[0].device)
        self.order = order
        self.origin: list[Tensor] = [one.detach() for one in self.owned]
        """the original parameters on the original device; do not write to them"""
        self.copies: list[Tensor] = []
        """the copies that the model uses inside the ``with`` block"""
        self._depth = 0
        for name, tensor in zip(self.names, self.origin, strict=True):
            check_finite(tensor, f"the parameter {name}")

    def __enter__(self) -> TemporaryParameters:
        if self._depth == 0:
            self._replace()
        self._depth += 1
        return self

    def __exit__(self, *exception: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._restore()

    def set(self, tensors: Sequence[Tensor]) -> None:
        """Set the parameters to these values."""
        with torch.no_grad():
            for copy, value in zip(self.copies, self._checked(tensors), strict=True):
                copy.copy_(value)

    def move(self, directions: Sequence[Sequence[Tensor]], steps: Sequence[float]) -> None:
        """Set the parameters to origin + step_1 direction_1 + step_2 direction_2 + ...; with none, to the origin.

        Each call starts at the origin, so that rounding errors do not accumulate from point to point.
        """
        self.set(self.origin)
        with torch.no_grad():
            for direction, step in zip(directions, steps, strict=True):
                for copy, part in zip(self.copies, self._checked(direction), strict=True):
                    copy.add_(part.to(copy), alpha=step)

    def set_buffers(self, values: dict[str, Tensor]) -> None:
        """Set buffers (such as running statistics) by name."""
        buffers = dict(self.model.named_buffers())
        with torch.no_grad():
            for name, value in values.items():
                buffers[name].copy_(value)

    def _checked(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        if not self._depth:
            raise RuntimeError("the parameters can only be set inside the with block")
        shapes = [list(one.shape) for one in tensors]
        wanted = [list(one.shape) for one in self.origin]
        if shapes != wanted:
            do = "use tensors of the same model's parameters"
            raise ExamineError("a point or direction", expected=f"tensors of shapes {wanted}", got=shapes, do=do)
        return tensors

    def _replace(self) -> None:
        if self.model in _in_use:
            raise RuntimeError("the model is in use already; use Objective.with_examples for a second set of examples")
        self._modes = {module: module.training for module in self.model.modules()}
        self._wants_gradient = [one.requires_grad for one in self.owned]
        self.origin = [one.detach() for one in self.owned]
        self._buffers = [
            (module, name, buffer)
            for module in self.model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        self.copies = [
            self._copy(one) for one in self.origin
        ]  # before the first change, since it may run out of memory
        buffer_copies = {
            id(buffer): self._copy(buffer) for _, _, buffer in self._buffers
        }  # a buffer that two modules share stays shared
        _in_use.add(self.model)
        for one, copy in zip(self.owned, self.copies, strict=True):
            one.data = copy
            one.requires_grad_(True)
        for module, name, buffer in self._buffers:
            module._buffers[name] = buffer_copies[id(buffer)]
        self.model.eval()

    def _restore(self) -> None:
        for one, origin, wanted in zip(self.owned, self.origin, self._wants_gradient, strict=True):
            one.data = origin
            one.requires_grad_(wanted)
        for module, name, buffer in self._buffers:
            module._buffers[name] = buffer
        for module, mode in self._modes.items():
            module.training = mode
        self.copies = []
        _in_use.discard(self.model)

    def _copy(self, tensor: Tensor) -> Tensor:
        order = self.order if tensor.dim() == 4 else torch.contiguous_format
        return tensor.detach().to(self.device).clone(memory_format=order)


def check_finite(tensor: Tensor, what: str) -> None:
    """Raise an error if a tensor contains NaN or infinity."""
    wrong = int((~torch.isfinite(tensor)).sum())
    if wrong:
        got = f"{wrong:,} NaN or infinite of {tensor.numel():,}"
        raise ExamineError(what, expected="finite numbers", got=got, do="examine a checkpoint from before it diverged")
