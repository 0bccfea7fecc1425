"""Learn which tensors were not finite without waiting for the device.

Each tensor has a number on the device, such as its norm, that is not finite if the tensor is not. On the CPU the
numbers are read at once. A GPU would have to finish all queued work first, so there they are copied to pinned memory,
behind the kernels of the step, and read at the next step: by then they have long arrived. Every rank reads them at the
same step, so that an error is raised by all or by none.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

import torch
from torch import Tensor


class LateFlags:
    """The numbers of the last step of an optimizer."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Sequence[Tensor], Tensor, torch.cuda.Event]] = []

    def note(self, owners: Sequence[Tensor], numbers: Tensor) -> list[Tensor]:
        """Return the tensors whose number is not finite; none on a GPU, where :meth:`take` returns them later."""
        if numbers.device.type != "cuda":
            return _nonfinite(owners, numbers)
        copy = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True).copy_(numbers, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(numbers.device))
        self._waiting.append((list(owners), copy, event))
        return []

    def take(self) -> list[Tensor]:
        """Return the tensors of the last step whose numbers were not finite, once."""
        waiting, self._waiting = self._waiting, []
        bad: list[Tensor] = []
        for owners, numbers, event in waiting:
            if not event.query():  # type: ignore[no-untyped-call]
                event.synchronize()  # of the last step; the device goes on with the work that is queued behind it
            bad += _nonfinite(owners, numbers)
        return bad

    def __reduce__(self) -> tuple[type[LateFlags], tuple[()]]:
        return LateFlags, ()  # the numbers belong to the optimizer that made the step


def _nonfinite(owners: Sequence[Tensor], numbers: Tensor) -> list[Tensor]:
    is_finite = numbers.isfinite()
    return [] if bool(is_finite.all()) else list(compress(owners, (~is_finite).tolist()))
