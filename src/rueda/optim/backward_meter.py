"""Measure the gradients of micro-batches in a training loop that accumulates them itself, without changing the loop.

A training loop of another library (Lightning, the Trainer of Hugging Face) sums the gradients of its micro-batches in
``.grad``, and clips them before a callback sees them. Two hooks on each parameter therefore read, during the backward
pass, the gradient of a micro-batch before autograd adds it to ``.grad``, and ``.grad`` after that.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor, nn

from rueda.optim.meters import Groups, GroupSums, Reading, reading_of_shares, square_norms


class BackwardMeter:
    """Measures the gradients of the micro-batches of one process, by hooks on its parameters.

    Set ``active`` before the first backward pass of an update, call :meth:`take` after each backward pass, whose loss
    must be the micro-batch's *share* of the mean loss, and :meth:`finish` after the last one. While it is not active,
    nothing is computed.

    >>> w = nn.Parameter(torch.tensor([1.0, 2.0]))
    >>> meter = BackwardMeter([w])
    >>> meter.active = True
    >>> for x in (torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0])):
    ...     ((w * x).sum() / 2).backward()
    ...     meter.take(1)
    >>> reading = meter.finish()
    >>> w.grad, reading.sums(), reading.num_parts
    (tensor([1.5000, 2.0000]), (25.0, 6.25), 2)
    """

    def __init__(self, parameters: Iterable[nn.Parameter], groups: Groups | None = None) -> None:
        self.active = False
        """whether the next backward passes are measured"""
        parameters = list(parameters)
        self._sums_by_group = GroupSums(parameters, groups)
        self._part: dict[int, Tensor] = {}
        self._sum: dict[int, Tensor] = {}
        self._squares: list[Tensor] = []
        self._sizes: list[int] = []
        self._handles = [
            handle
            for number, parameter in enumerate(parameters)
            for handle in (
                parameter.register_hook(partial(self._see_part, number)),  # type: ignore[no-untyped-call]
                parameter.register_post_accumulate_grad_hook(partial(self._see_sum, number)),  # type: ignore[no-untyped-call]
            )
        ]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of examples in each part taken so far."""
        return tuple(self._sizes)

    def take(self, num_examples: int) -> None:
        """Record the gradient norm of the micro-batch, of this many examples, whose backward pass has just ended."""
        if self.active and self._part:
            self._squares.append(self._total(self._part))
            self._sizes.append(num_examples)
            self._part = {}

    def finish(self) -> Reading | None:
        """Return the norms of the parts since the last call; None if no part was measured."""
        reading = reading_of_shares(self._squares, self._total(self._sum), self._sizes) if self._squares else None
        self.reset()
        return reading

    def reset(self) -> None:
        """Forget the parts that were measured."""
        self._part, self._sum, self._squares, self._sizes = {}, {}, [], []

    def remove(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()

    def _see_part(self, number: int, gradient: Tensor) -> None:
        if self.active:
            self._part[number] = square_norms([gradient])

    def _see_sum(self, number: int, parameter: Tensor) -> None:
        if self.active and parameter.grad is not None:
            self._sum[number] = square_norms([parameter.grad])

    def _total(self, norms: dict[int, Tensor]) -> Tensor:
        numbers = sorted(norms)
        return self._sums_by_group.total([(numbers, torch.cat([norms[number] for number in numbers]))])
