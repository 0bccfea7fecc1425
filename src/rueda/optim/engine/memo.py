"""What sorting found out about a group, kept for the next step.

Sorting asks a dozen questions of every parameter; at 400 small tensors that is a twentieth of a step, and the answers
hardly ever change. A memo asks only what tells that they have not: the same parameters, state and options, weights at
the same address, and gradients, which are new at every step, of the right kind. One different answer, and the group is
sorted as if there were no memo.
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
    """Return what sorting looks at beside the tensors."""
    return group["adapt"], group["fused"], group["capturable"]


def _same(some: Collection[Any], others: Collection[Any]) -> bool:
    return len(some) == len(others) and all(map(is_, some, others))


class Memo:
    """The items of a group all of whose parameters with gradients took the host path as they are.

    Args:
        group: the parameter group.
        items: what sorting made of it; no gradient is kept.
        buffer: the state tensor that is laid out as the rest of the state.
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
        self.fits = busy <= owners  # others are flat views of parameters, made anew at every step

    def items(self, group: dict[str, Any]) -> list[Item] | None:
        """Return the items with their present gradients, or None if the group must be sorted again."""
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
    """The memos of an optimizer's groups, void as soon as its state holds other dictionaries than it did."""

    def __init__(self) -> None:
        self.states: list[State] = []
        self.of_group: dict[int, Memo] = {}

    def check(self, states: Mapping[Tensor, State]) -> None:
        """Forget everything if a parameter's state was added, removed or replaced: loading does it."""
        if not _same(states.values(), self.states):
            self.states = list(states.values())
            self.of_group.clear()
