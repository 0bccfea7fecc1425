"""LARC: the local rate of LARS as a wrapper around any torch optimizer.

::

    local  = trust |w| / (|g| + beta |w| + eps)     beta: the inner optimizer's weight decay
    g      = factor (g + beta w)                    factor: min(local / lr, 1) to clip, local to scale
    then the inner optimizer steps with g and without weight decay

*Clip* limits the rate of each layer to that of the inner optimizer; *scale* multiplies that rate by the local one,
which with SGD is LARS except that the rate is not part of the momentum. If a norm is 0, the factor is 1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from math import inf
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from rueda.optim.checks import require
from rueda.optim.engine.base import loss_of
from rueda.optim.engine.blocks import Blocks, KeptBlocks
from rueda.optim.engine.lanes import Lane, Lanes, local, sort
from rueda.optim.engine.late import LateFlags
from rueda.optim.engine.nonfinite import report
from rueda.optim.engine.norms import norms
from rueda.optim.engine.rates import add_decay_, local_rates
from rueda.optim.wrapper import Wrapper


class LARC(Wrapper):
    """Layer-wise adaptive rate control.

    The gradients are scaled in place, as ``clip_grad_norm_`` does, and the weight decay is added to them, even for an
    optimizer that would decouple it (AdamW).

    Args:
        optimizer: any torch optimizer; a scheduler may be attached to either of the two.
        trust: the fraction of a layer's norm by which a step at rate 1 moves it.
        mode: ``"clip"`` or ``"scale"``.
        eps: added to the denominator.
        adapt: None excludes biases and norms (at most one dimension) from adaptation and decay; True adapts all; the
            ``adapt`` of a group has precedence.
        nonfinite: ``"raise"`` reports NaN and inf before any parameter is stepped; ``"skip"`` passes zeros to the inner
            optimizer for such a tensor. So does ``"raise"`` on a GPU, where it reports at the next step: no step waits
            for the device.

    >>> w = torch.nn.Parameter(torch.tensor([[3.0, 4.0]]))           # |w| = 5
    >>> w.grad = torch.tensor([[0.0, 100.0]])                        # |g| = 100: too long a step
    >>> LARC(torch.optim.SGD([w], lr=0.1), trust=0.2).step()         # local = 0.2 * 5 / 100, below lr
    >>> w.data
    tensor([[3., 3.]])
    """

    def __init__(
        self,
        optimizer: Optimizer,
        trust: float = 0.02,
        mode: str = "clip",
        eps: float = 1e-8,
        adapt: bool | None = None,
        nonfinite: str = "raise",
    ) -> None:
        super().__init__(optimizer)
        require("trust", trust > 0, "above 0", trust)
        require("mode", mode in ("clip", "scale"), "'clip' or 'scale'", mode)
        require("eps", eps >= 0, "at least 0", eps)
        require("nonfinite", nonfinite in ("raise", "skip"), "'raise' or 'skip'", nonfinite)
        self.trust, self.mode, self.eps, self.adapt, self.nonfinite = trust, mode, eps, adapt, nonfinite
        self._late, self._kept = LateFlags(), KeptBlocks()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Rescale the gradients, then step the inner optimizer."""
        loss = loss_of(closure)
        self.raise_late()
        work = [(lane, *self._factors(lane)) for lane in self._lanes()]
        if self.nonfinite == "raise":
            self._raise([p for lane, _, _, total in work for p in self._late.note(lane.owners, total)])
        for lane, blocks, factors, total in work:
            self._rescale(lane, blocks, torch.where(total < inf, factors, blocks.constant(0.0, like=factors)))
        self.step_with("weight_decay", lambda decay: 0.0)
        return loss

    def raise_late(self) -> None:
        """Raise the error of the last step on a GPU, which :meth:`step` raises one step later; every rank must call it.

        Call it before the weights are saved or evaluated.
        """
        self._raise(self._late.take())

    def _raise(self, bad: list[Tensor]) -> None:
        if bad:
            raise report("LARC", self.param_groups, bad)

    def _lanes(self) -> list[Lane]:
        lanes = Lanes()
        for group in self.param_groups:
            own = {"adapt": group.get("adapt", self.adapt), "fused": False, "capturable": False}
            names = ("params", "lr", "weight_decay", "maximize")
            sort({**{k: group[k] for k in names if k in group}, **own}, defaultdict(dict), lambda *_: {}, "", lanes)
        return lanes.all

    def _factors(self, lane: Lane) -> tuple[Blocks, Tensor, Tensor]:
        """Return the layout of a lane, the factor of each gradient, and a sum that is finite if its norms are."""
        blocks, found = self._kept.blocks(lane), norms(lane.grads, lane.params, shards=lane.shards)
        rates = local_rates(lane, blocks, found, self.trust, self.eps)
        factors = torch.clamp(rates / lane.group["lr"], max=1.0) if self.mode == "clip" else rates
        return blocks, torch.where(rates > 0, factors, blocks.constant(1.0, like=found)), found.sum(dim=0)

    def _rescale(self, lane: Lane, blocks: Blocks, factors: Tensor) -> None:
        blocks.gather({"g": lane.grads})
        add_decay_(lane, blocks.views("g"), lane.params, -1.0 if lane.group.get("maximize") else 1.0)
        (factor,) = blocks.spread(factors)
        blocks.matrix("g").nan_to_num_(0.0, 0.0, 0.0).mul_(factor)
        blocks.scatter("g", [local(p.grad) for p in lane.owners if p.grad is not None])
