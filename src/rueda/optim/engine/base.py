"""The base class of LARS, LAMB and NovoGrad: options, state, the two paths, and non-finite gradients.

A step has four phases: **sort** the tensors into items (host path) and lanes (multi-tensor path),
**prepare** what depends on all gradients, **update**, and **report** the tensors that were not finite. On a GPU the
report of a step is made at the next one, so that no step waits for the device.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from rueda.errors import RecipeError
from rueda.optim.checks import check_common, require
from rueda.optim.engine.blocks import Blocks, KeptBlocks
from rueda.optim.engine.lanes import Item, Lane, Lanes, State, sort
from rueda.optim.engine.late import LateFlags
from rueda.optim.engine.memo import Memo, Memos
from rueda.optim.engine.nonfinite import report
from rueda.optim.engine.norms import norms

Group = dict[str, Any]
COMMON = {"maximize": False, "adapt": None, "nonfinite": "raise", "capturable": False, "fused": None}


@dataclass(frozen=True)
class SortedTensors:
    """The sorted tensors of a step."""

    items: list[tuple[Group, list[Item]]]
    """the tensors of the host path, by group"""
    lanes: list[Lane]


class LayerwiseOptimizer(Optimizer):
    """A torch optimizer whose update depends on the norms of whole tensors.

    Common options, each also a key of a parameter group:

    - ``adapt``: None (default) excludes parameters with at most one dimension (biases and norms) from weight decay and
      layer-wise adaptation; True adapts and decays all; False adapts none and applies ``weight_decay`` to all.
    - ``nonfinite``: a tensor whose gradient or ratio is not finite keeps its weights. ``"raise"`` (default) raises an
      error after all other tensors have been stepped; ``"skip"`` is silent, and the tensor keeps its state as well. No
      step waits for a GPU: there the error is raised by the next call of ``step`` or by ``raise_late``.
    - ``maximize``: maximise the objective instead of minimising it.
    - ``capturable``: keep all numbers on the device, for CUDA graphs; needs ``nonfinite="skip"``.
    - ``fused``: None uses torch's fused CPU kernels where possible, False never.
    """

    needs_weight_norm = True
    buffer = "exp_avg"  # name of a state tensor that has the shape of the parameter
    slot = "g"  # the slot of the gradients; a second letter asks for a second plane

    @abstractmethod
    def check(self, group: Group) -> None:
        """Refuse a group with invalid options."""

    @abstractmethod
    def begin(self, group: Group, p: Tensor) -> State:
        """Return the state of a parameter before its first step."""

    @abstractmethod
    def update_items(self, group: Group, items: list[Item], bad: list[Tensor]) -> None:
        """Step single CPU tensors; those that are not finite are not changed and added to ``bad``."""

    @abstractmethod
    def update_lane(self, lane: Lane, blocks: Blocks, weights: list[Tensor], norms: Tensor, total: Tensor) -> Tensor:
        """Step ``weights`` and the lane's state, except for the tensors whose total is not finite.

        Args:
            lane: the tensors and their state.
            blocks: their layout; the first plane of :attr:`slot` holds the gradients.
            weights: the weights in full precision.
            norms: |g| (row 0), |w| (row 1, if it is needed) and the numbers of :meth:`counts`.
            total: the sum of the norms of each tensor, on the device: nan or inf if one of them is.

        Returns:
            The totals, with those of tensors that turned out not to be finite.
        """

    def gathered(self, lane: Lane) -> dict[str, list[Tensor]]:
        """Return the state tensors that are copied into slots together with the gradients; by default none."""
        return {}

    def counts(self, lane: Lane) -> list[Tensor]:
        """Return a scalar of each tensor's state that is collected together with the norms; by default none."""
        return []

    def prepare(self, tensors: SortedTensors) -> SortedTensors:
        """Change the gradients before the update, where that depends on all of them; by default do nothing."""
        return tensors

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one step; return the loss of the closure, if there is one."""
        loss = loss_of(closure)
        if not torch.compiler.is_compiling():
            self.raise_late()
        bad: list[Tensor] = []
        tensors = self.prepare(self._sort())
        for group, items in tensors.items:
            skipped: list[Tensor] = []
            if items:
                with torch.inference_mode():  # makes views and norms cheaper; weights and state stay ordinary tensors
                    self.update_items(group, items, skipped)
            if group["nonfinite"] == "raise":
                bad += skipped
        for lane in tensors.lanes:
            bad += self._step_lane(lane)
        if bad:
            raise report(type(self).__name__, self.param_groups, bad)
        return loss

    def raise_late(self) -> None:
        """Raise the error of the last step on a GPU, which :meth:`step` raises one step later; every rank must call it.

        Call it before the weights are saved or evaluated.
        """
        bad = self._late.take()
        if bad:
            raise report(type(self).__name__, self.param_groups, bad)

    @property
    def _late(self) -> LateFlags:
        flags: LateFlags = self.__dict__.setdefault("_late_flags", LateFlags())
        return flags

    def _sort(self) -> SortedTensors:
        """Sort the tensors of every group, or reuse the result of the last step."""
        lanes = Lanes()
        if torch.compiler.is_compiling():
            found = [(group, sort(group, self.state, self.begin, self.buffer, lanes)) for group in self.param_groups]
            return SortedTensors(found, lanes.all)
        memos: Memos = self.__dict__.setdefault("_memos", Memos())
        memos.check(self.state)
        found = []
        for number, group in enumerate(self.param_groups):
            memo = memos.of_group.pop(number, None)
            items = memo.items(group) if memo is not None else None
            if items is None:
                num_lanes = lanes.num_tensors
                items = sort(group, self.state, self.begin, self.buffer, lanes)
                memo = Memo(group, items, self.buffer) if items and lanes.num_tensors == num_lanes else None
            if memo is not None and memo.fits:
                memos.of_group[number] = memo
            found.append((group, items))
        return SortedTensors(found, lanes.all)

    def _step_lane(self, lane: Lane) -> list[Tensor]:
        """Step a lane; return the tensors that were not ok, if they must be reported and are known already."""
        kept: KeptBlocks = self.__dict__.setdefault("_kept", KeptBlocks())
        group, blocks = lane.group, kept.blocks(lane)
        lists = [lane.grads, lane.params] if self.needs_weight_norm else [lane.grads]
        found = norms(*lists, shards=lane.shards, also=self.counts(lane))  # [1 to 3, tensors]
        blocks.gather({self.slot: lane.grads, **self.gathered(lane)})
        grads = blocks.matrix(self.slot)
        if group["maximize"]:
            grads.neg_()
        if lane.scale is not None:
            found[0].mul_(lane.scale)
            grads.mul_(lane.scale)
        is_half = lane.params[0].dtype not in (torch.float32, torch.float64)
        if is_half:
            blocks.gather({"w": lane.params})
        weights = blocks.views("w") if is_half else lane.params
        total = found[: len(lists)].sum(dim=0) if len(lists) > 1 else found[0]
        total = self.update_lane(lane, blocks, weights, found, total)
        if is_half:
            blocks.scatter("w", lane.params)
        return self._late.note(lane.owners, total) if group["nonfinite"] == "raise" else []

    def scratch(self, size: int, like: Tensor) -> Tensor:
        """Return a reused one-dimensional buffer: page faults of new large tensors cost more than the arithmetic."""
        kept: dict[torch.dtype, Tensor] = self.__dict__.setdefault("_scratch", {})
        line = kept.get(like.dtype)
        if line is None or line.numel() < size:
            line = kept[like.dtype] = torch.zeros(size, dtype=like.dtype)
        return line[:size]

    def add_param_group(self, param_group: Group) -> None:
        """Add a parameter group after checking its options."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            require("lr", float(group["lr"]) >= 0, "at least 0", group["lr"])
            check_common(group)
            require("nonfinite", group["nonfinite"] in ("raise", "skip"), "'raise' or 'skip'", group["nonfinite"])
            clash = group["capturable"] and group["nonfinite"] == "raise"
            require("nonfinite", not clash, "'skip' with capturable=True, as raising reads the device", "raise")
            self.check(group)
        except RecipeError:
            self.param_groups.pop()
            raise

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; the float32 state of half-precision parameters stays float32 (torch would convert it)."""
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
    """Call the closure of a step, which recomputes the gradients, and return its loss; None without a closure."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def known(options: dict[str, Any]) -> dict[str, Any]:
    """Return the common options; refuse unknown names."""
    unknown = sorted(options.keys() - COMMON.keys())
    require("options", not unknown, "only " + ", ".join(sorted(COMMON)), unknown)
    return options
