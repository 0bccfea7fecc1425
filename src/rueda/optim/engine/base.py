"""The optimizer that LARS, LAMB and NovoGrad extend: arguments, state, paths, and what is not finite.

A step has four phases: **sort** the tensors into items (host path) and lanes (multi-tensor path),
**prepare** what needs all gradients at once, **update**, and **report** what was not finite.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from rueda.errors import RecipeError
from rueda.optim.engine.lanes import Item, Lane, State, sort
from rueda.optim.engine.memo import Memo, Memos
from rueda.optim.engine.nonfinite import report
from rueda.optim.engine.norms import squares

Group = dict[str, Any]
Work = list[tuple[Group, list[Item], list[Lane]]]
COMMON = {"maximize": False, "adapt": None, "nonfinite": "raise", "capturable": False, "fused": None}


class LayerwiseOptimizer(Optimizer):
    """A torch optimizer whose update depends on the norms of whole tensors.

    Options that all share, each also a key of a parameter group:

    - ``adapt``: None (default) leaves parameters with at most one dimension, biases and norms, out of weight decay
      and of layer-wise adaptation; True adapts and decays all; False adapts none and decays as ``weight_decay`` says.
    - ``nonfinite``: a tensor whose gradient, or whose ratio, is not finite keeps its weights. ``"raise"`` (default)
      reports it when the others have been stepped; ``"skip"`` says nothing, and the tensor keeps its state too. On
      CUDA ``"raise"`` waits for the device once a lane, ``"skip"`` never does.
    - ``maximize``: climb instead of descend.
    - ``capturable``: keep every number on the device, for CUDA graphs; needs ``nonfinite="skip"``.
    - ``fused``: None uses torch's fused CPU kernels where they fit, False never.
    """

    needs_weight_norm = True
    buffer = "exp_avg"  # a state tensor shaped as the parameter

    @abstractmethod
    def check(self, group: Group) -> None:
        """Refuse a group whose numbers make no sense."""

    @abstractmethod
    def begin(self, group: Group, p: Tensor) -> State:
        """Return the state of a parameter before its first step."""

    @abstractmethod
    def update_items(self, group: Group, items: list[Item], bad: list[Tensor]) -> None:
        """Step single CPU tensors; those that are not finite go to ``bad``, untouched."""

    @abstractmethod
    def update_lane(
        self, group: Group, lane: Lane, weights: list[Tensor], grads: list[Tensor], norms: Tensor, ok: Tensor | None
    ) -> None:
        """Step ``weights`` and the lane's state; ``norms`` holds |g| (row 0) and |w| (row 1, if it is needed)."""

    def prepare(self, work: Work) -> Work:
        """Do what needs all gradients before any is used."""
        return work

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; returns the closure's loss if there is one."""
        loss = loss_of(closure)
        bad: list[Tensor] = []
        work = self._sort()
        for group, items, lanes in self.prepare(work):
            skipped: list[Tensor] = []
            if items:
                with torch.inference_mode():  # views and norms cost less; weights and state stay what they are
                    self.update_items(group, items, skipped)
            for lane in lanes:
                skipped += self._step_lane(group, lane)
            if group["nonfinite"] == "raise":
                bad += skipped
        if bad:
            raise report(type(self).__name__, self.param_groups, bad)
        return loss

    def _sort(self) -> Work:
        """Sort every group, or remember how the last step did it."""
        if torch.compiler.is_compiling():
            return [(group, *sort(group, self.state, self.begin, self.buffer)) for group in self.param_groups]
        memos: Memos = self.__dict__.setdefault("_memos", Memos())
        memos.check(self.state)
        work: Work = []
        for number, group in enumerate(self.param_groups):
            memo = memos.of_group.pop(number, None)
            items = memo.items(group) if memo is not None else None
            lanes: list[Lane] = []
            if items is None:
                items, lanes = sort(group, self.state, self.begin, self.buffer)
                memo = Memo(group, items, self.buffer) if items and not lanes else None
            if memo is not None and memo.fits:
                memos.of_group[number] = memo
            work.append((group, items, lanes))
        return work

    def _step_lane(self, group: Group, lane: Lane) -> list[Tensor]:
        lists = [lane.grads, lane.params] if self.needs_weight_norm and lane.adapted else [lane.grads]
        totals = squares(*lists, shards=lane.shards)  # [1 or 2, tensors]
        finite = totals.sum(dim=0).isfinite()
        ok: Tensor | None = finite
        skipped: list[Tensor] = []
        if group["nonfinite"] == "raise":
            if not bool(finite.all()):  # the one wait for the device
                flags = finite.tolist()
                skipped = [p for p, flag in zip(lane.owners, flags, strict=True) if not flag]
                lane, totals = lane.pick(flags), totals[:, finite]
            ok = None
        if lane.params:
            weights, grads = lane.params, lane.grads
            if group["maximize"]:
                grads = list(torch._foreach_neg(grads))
            if is_half := weights[0].dtype not in (torch.float32, torch.float64):
                weights = [weight.float() for weight in weights]
            self.update_lane(group, lane, weights, grads, totals.sqrt(), ok)
            if is_half:
                torch._foreach_copy_(lane.params, weights)
        return skipped

    def scratch(self, size: int, like: Tensor) -> Tensor:
        """Return a reused line of memory: fresh large temporaries cost more (page faults) than the arithmetic."""
        kept: dict[torch.dtype, Tensor] = self.__dict__.setdefault("_scratch", {})
        line = kept.get(like.dtype)
        if line is None or line.numel() < size:
            line = kept[like.dtype] = torch.zeros(size, dtype=like.dtype)
        return line[:size]

    def decay_of(self, group: Group, adapted: bool) -> float:
        """Return the weight decay of an adapted or left-out tensor of the group."""
        return float(group["weight_decay"]) if adapted or group["adapt"] is not None else 0.0

    def add_param_group(self, param_group: Group) -> None:
        """Add a group, after the check that the optimizer's own arguments get."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            require("lr", float(group["lr"]) >= 0, "at least 0", group["lr"])
            require("weight_decay", group["weight_decay"] >= 0, "at least 0", group["weight_decay"])
            require("nonfinite", group["nonfinite"] in ("raise", "skip"), "'raise' or 'skip'", group["nonfinite"])
            require("adapt", group["adapt"] in (None, True, False), "None, True or False", group["adapt"])
            clash = group["capturable"] and group["nonfinite"] == "raise"
            require("nonfinite", not clash, "'skip' with capturable=True, as raising reads the device", "raise")
            self.check(group)
        except RecipeError:
            self.param_groups.pop()
            raise

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; float32 state of half-precision parameters stays float32 (torch would round it)."""
        super().load_state_dict(state_dict)
        numbers = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        owners = chain.from_iterable(group["params"] for group in self.param_groups)
        for number, p in zip(numbers, owners, strict=True):
            if p.dtype in (torch.float32, torch.float64):
                continue
            for name, value in state_dict["state"].get(number, {}).items():
                if name != "step" and isinstance(value, Tensor):
                    self.state[p][name] = value.to(device=p.device, dtype=torch.float32, copy=True)


def loss_of(closure: Callable[[], Any] | None) -> Any:
    """Call a step's closure, which computes the gradients anew; None without one."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def require(name: str, holds: bool, expected: str, got: object) -> None:
    """Raise a one-line :class:`RecipeError` unless the argument is right."""
    if not holds:
        raise RecipeError(name, expected=expected, got=got, do="correct the optimizer's argument")


def known(options: dict[str, Any]) -> dict[str, Any]:
    """Return the shared options, refusing a name that is none of them."""
    unknown = sorted(options.keys() - COMMON.keys())
    require("options", not unknown, "only " + ", ".join(sorted(COMMON)), unknown)
    return options
