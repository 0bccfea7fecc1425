"""What sorting found out about a group, kept for the next step.

Sorting asks a dozen questions of every parameter; at 400 small tensors that is a twentieth of a step, and the answers
hardly ever change. A memo asks only what tells that they have not: the same parameters, state and options, weights at
the same address, and gradients, which are new at every step, of the right kind. One different answer, and the group is
sorted as if there were no memo.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import is_
from typing import Any

import torch
from torch import Tensor

from rueda.optim.engine.lanes import Item, State

_OPTIONS = ("adapt", "fused", "capturable")  # of a group, those that sorting looks at
_NOWHERE = -1  # the address of a parameter that had no gradient: if it has one now, the memo is void
_Row = tuple[Tensor, State, Tensor | None, bool, torch.dtype, int]


class Memo:
    """The items of a group all of whose parameters with gradients took the host path as they are.

    Args:
        group: the parameter group.
        items: what sorting made of it; no gradient is kept.
        buffer: the state tensor that is laid out as the rest of the state.
    """

    def __init__(self, group: dict[str, Any], items: Sequence[Item], buffer: str) -> None:
        self.params, self.buffer = list(group["params"]), buffer
        self.options = [group[name] for name in _OPTIONS]
        found = {id(p): (state, adapted) for p, _, state, adapted in items}
        self.rows: list[_Row] = []
        for p in self.params:
            if id(p) in found:
                state, adapted = found.pop(id(p))
                self.rows.append((p, state, state.get(buffer), adapted, p.dtype, p.data_ptr()))
            else:
                self.rows.append((p, {}, None, False, p.dtype, _NOWHERE))
        self.fits = not found  # what is left are flat views of parameters, made anew at every step

    def items(self, group: dict[str, Any]) -> list[Item] | None:
        """Return the items with their present gradients, or None if the group must be sorted again."""
        params = group["params"]
        if len(params) != len(self.params) or not all(map(is_, params, self.params)):
            return None
        if [group[name] for name in _OPTIONS] != self.options:
            return None
        items: list[Item] = []
        buffer = self.buffer
        for p, state, like, adapted, dtype, address in self.rows:
            grad = p.grad
            if grad is None:
                continue
            same = p.data_ptr() == address and state.get(buffer) is like
            if not (same and grad.dtype is dtype and grad.is_contiguous()):
                return None
            items.append((p, grad, state, adapted))
        return items


class Memos:
    """The memos of an optimizer's groups, void as soon as its state holds other dictionaries than it did."""

    def __init__(self) -> None:
        self.states: list[State] = []
        self.of_group: dict[int, Memo] = {}

    def check(self, states: Mapping[Tensor, State]) -> None:
        """Forget everything if a parameter's state was added, removed or replaced: loading does it."""
        if len(states) != len(self.states) or not all(map(is_, states.values(), self.states)):
            self.states = list(states.values())
            self.of_group.clear()
