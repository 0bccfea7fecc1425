"""Cache the result of sorting a group for the next step.

Sorting checks a dozen properties of every parameter; for 400 small tensors that is a twentieth of a step, and the
result hardly ever changes. A memo only checks that it is still valid: the same parameters, state and options, weights
at the same address, and new gradients of the same kind. If one of these differs, the group is sorted again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import repeat
from operator import attrgetter, is_, is_not
from typing import Any

from torch import Tensor

from rueda.optim.engine.lanes import Item, State

_dtype = attrgetter("dtype")


def _options(group: dict[str, Any]) -> tuple[Any, ...]:
    """Return the options that sorting depends on."""
    return group["adapt"], group["fused"], group["capturable"]


def _same(some: Collection[Any], others: Collection[Any]) -> bool:
    return len(some) == len(others) and all(map(is_, some, others))


class Memo:
    """The sorted items of a group in which all parameters with gradients take the host path unchanged.

    Args:
        group: the parameter group.
        items: the result of sorting it; the gradients are not kept.
        buffer: the name of a state tensor whose memory layout is that of all state tensors.
    """

    def __init__(self, group: dict[str, Any], items: Sequence[Item], buffer: str) -> None:
        self.all, self.buffer, self.options = list(group["params"]), buffer, _options(group)
        self.params = [item[0] for item in items]
        self.states = [item[2] for item in items]
        self.adapted = [item[3] for item in items]
        self.buffers = [state.get(buffer) for state in self.states]
        self.addresses = list(map(Tensor.data_ptr, self.params))
        self.dtypes = list(map(_dtype, self.params))
        busy, owners = set(map(id, self.params)), set(map(id, self.all))
        self.idle = [p for p in self.all if id(p) not in busy]
        self.fits = busy <= owners  # other items are views, which are created at every step

    def items(self, group: dict[str, Any]) -> list[Item] | None:
        """Return the items with their current gradients; None if the group must be sorted again."""
        if not _same(group["params"], self.all) or _options(group) != self.options:
            return None
        grads: list[Any] = [p.grad for p in self.params]
        if not all(map(is_not, grads, repeat(None))) or any(p.grad is not None for p in self.idle):
            return None
        buffer = self.buffer
        holds = (
            list(map(Tensor.data_ptr, self.params)) == self.addresses
            and all(map(is_, [state.get(buffer) for state in self.states], self.buffers))
            and all(map(is_, map(_dtype, grads), self.dtypes))
            and all(map(Tensor.is_contiguous, grads))
        )
        return list(zip(self.params, grads, self.states, self.adapted, strict=True)) if holds else None


class Memos:
    """The memos of an optimizer's groups; they are dropped when the optimizer's state is replaced."""

    def __init__(self) -> None:
        self.states: list[State] = []
        self.of_group: dict[int, Memo] = {}

    def check(self, states: Mapping[Tensor, State]) -> None:
        """Drop all memos if the state of a parameter was added, removed or replaced, as loading does."""
        if not _same(states.values(), self.states):
            self.states = list(states.values())
            self.of_group.clear()
