"""A model, borrowed: its parameters may be moved, and it comes back bit for bit as it was.

While it is borrowed, every parameter and buffer of the model *points* to a tensor of ours (in the memory order and on
the device that computing wants). The owner's tensors are never written, so giving back is a change of pointers: it
needs no arithmetic that could round, and it happens after an exception, too. Training modes and ``requires_grad`` come
back as well; ``.grad`` is not touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rueda.errors import ExamineError

_held: WeakSet[nn.Module] = WeakSet()


class Borrowed:
    """The floating-point parameters of a model, movable while the ``with`` block lasts; may be entered again inside.

    Args:
        model: any module; the one inside DistributedDataParallel is taken.
        device: where to compute; by default where the model is.
        order: the memory order of 4-d parameters.

    >>> model = nn.Linear(2, 1)
    >>> before = model.weight.data_ptr()
    >>> with Borrowed(model) as borrowed:
    ...     borrowed.move([[torch.ones(1, 2), torch.zeros(1)]], [0.5])
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
        self.device = torch.device(device) if device is not None else self.owned[0].device
        self.order = order
        self.origin: list[Tensor] = [one.detach() for one in self.owned]
        """the parameters as their owner has them, on his device: not to be written"""
        self.work: list[Tensor] = []
        """what the model computes with while it is borrowed"""
        self._depth = 0
        for name, tensor in zip(self.names, self.origin, strict=True):
            check_finite(tensor, f"the parameter {name}")

    def __enter__(self) -> Borrowed:
        self._depth += 1
        if self._depth > 1:
            return self
        try:
            self._take()
        except BaseException:
            self._depth = 0
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._give_back()

    @property
    def is_held(self) -> bool:
        """Whether the model is borrowed at this moment."""
        return self._depth > 0

    def set(self, tensors: Sequence[Tensor]) -> None:
        """Give the parameters these values."""
        with torch.no_grad():
            for work, value in zip(self.work, self._checked(tensors), strict=True):
                work.copy_(value)

    def move(self, directions: Sequence[Sequence[Tensor]], steps: Sequence[float]) -> None:
        """Set the parameters to origin + step_1 direction_1 + step_2 direction_2 + ...; with none, to the origin.

        It starts at the origin each time: no rounding adds up from point to point.
        """
        self.set(self.origin)
        with torch.no_grad():
            for direction, step in zip(directions, steps, strict=True):
                for work, part in zip(self.work, self._checked(direction), strict=True):
                    work.add_(part.to(work), alpha=step)

    def set_buffers(self, values: dict[str, Tensor]) -> None:
        """Give buffers (such as running statistics) these values, by name."""
        buffers = dict(self.model.named_buffers())
        with torch.no_grad():
            for name, value in values.items():
                buffers[name].copy_(value)

    def _checked(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        if not self.is_held:
            raise RuntimeError("a borrowed model moves inside its with block only")
        shapes = [list(one.shape) for one in tensors]
        wanted = [list(one.shape) for one in self.origin]
        if shapes != wanted:
            raise ExamineError(
                "a point or direction",
                expected=f"tensors of shapes {wanted}",
                got=shapes,
                do="make one of the same model",
            )
        return tensors

    def _take(self) -> None:
        if self.model in _held:
            raise RuntimeError(
                "the model is borrowed already; use Objective.with_examples for a second set of examples"
            )
        self._modes = {module: module.training for module in self.model.modules()}
        self._wants_gradient = [one.requires_grad for one in self.owned]
        self.origin = [one.detach() for one in self.owned]
        self._buffers = [
            (module, name, buffer)
            for module in self.model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        self.work = [self._copy(one) for one in self.origin]  # what may fail (memory) comes before the first change
        copies = {id(buffer): self._copy(buffer) for _, _, buffer in self._buffers}  # one that is shared stays shared
        _held.add(self.model)
        for one, work in zip(self.owned, self.work, strict=True):
            one.data = work
            one.requires_grad_(True)
        for module, name, buffer in self._buffers:
            module._buffers[name] = copies[id(buffer)]
        self.model.eval()

    def _give_back(self) -> None:
        for one, origin, wanted in zip(self.owned, self.origin, self._wants_gradient, strict=True):
            one.data = origin
            one.requires_grad_(wanted)
        for module, name, buffer in self._buffers:
            module._buffers[name] = buffer
        for module, mode in self._modes.items():
            module.training = mode
        self.work = []
        _held.discard(self.model)

    def _copy(self, tensor: Tensor) -> Tensor:
        order = self.order if tensor.dim() == 4 else torch.contiguous_format
        return tensor.detach().to(self.device).clone(memory_format=order)


def check_finite(tensor: Tensor, what: str) -> None:
    """Refuse NaN and infinity in a line."""
    wrong = int((~torch.isfinite(tensor)).sum())
    if wrong:
        raise ExamineError(
            what,
            expected="finite numbers",
            got=f"{wrong:,} NaN or infinite of {tensor.numel():,}",
            do="examine a checkpoint from before it diverged",
        )
