"""LARC: LARS's local rate as a wrapper round any torch optimizer.

::

    local  = trust |w| / (|g| + beta |w| + eps)     beta: the inner optimizer's weight decay
    g      = factor (g + beta w)                    factor: min(local / lr, 1) to clip, local to scale
    then the inner optimizer steps with g and without decay of its own

*Clip* lets no layer move further than the inner rate would; *scale* multiplies the rate by the local one,
which with SGD is LARS but for the place of the rate in the momentum. Where a norm is 0 the factor is 1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from rueda.optim.engine.base import loss_of, require
from rueda.optim.engine.lanes import Lane, local, sort
from rueda.optim.engine.nonfinite import report
from rueda.optim.engine.norms import squares
from rueda.optim.engine.tensors import cleaned, multiply_
from rueda.optim.wrapper import Wrapper


class LARC(Wrapper):
    """Layer-wise rate control.

    The gradients are scaled in place, as ``clip_grad_norm_`` does, and the weight decay joins them, also for
    an optimizer that would decouple it (AdamW).

    Args:
        optimizer: any torch optimizer; schedulers may drive either.
        trust: the share of a layer's norm that a step of rate 1 may move.
        mode: ``"clip"`` or ``"scale"``.
        eps: added to the denominator.
        adapt: None leaves biases and norms (at most one dimension) out of adaptation and decay; True adapts
            all; a group's own ``adapt`` goes first.
        nonfinite: ``"raise"`` reports NaN and inf before anything is stepped; ``"skip"`` gives the inner
            optimizer zeros for such a tensor, and never waits for the device.

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

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Rescale the gradients, then let the inner optimizer step."""
        loss = loss_of(closure)
        work = [(group, lane, *self._factor(group, lane)) for group in self.param_groups for lane in self._lanes(group)]
        if self.nonfinite == "raise":
            bad = [p for _, lane, _, ok in work for p in _flagged(lane, ok)]
            if bad:
                raise report("LARC", self.param_groups, bad)
        for group, lane, factor, ok in work:
            self._rescale(group, lane, factor, None if self.nonfinite == "raise" else ok)
        self.step_with("weight_decay", lambda decay: 0.0)
        return loss

    def _lanes(self, group: dict[str, Any]) -> list[Lane]:
        view = {"params": group["params"], "adapt": group.get("adapt", self.adapt), "fused": False, "capturable": False}
        return sort(view, defaultdict(dict), lambda *_: {}, "")[1]

    def _decay(self, group: dict[str, Any], lane: Lane) -> float:
        is_left_out = not lane.adapted and group.get("adapt", self.adapt) is None
        return 0.0 if is_left_out else float(group.get("weight_decay", 0.0))

    def _factor(self, group: dict[str, Any], lane: Lane) -> tuple[Tensor | float, Tensor]:
        """Return what each gradient is multiplied by, and which are finite."""
        if not lane.adapted:
            return 1.0, squares(lane.grads, shards=lane.shards)[0].isfinite()
        g, w = squares(lane.grads, lane.params, shards=lane.shards).sqrt()
        rate = self.trust * w / (g + self._decay(group, lane) * w + self.eps)
        factor = torch.clamp(rate / group["lr"], max=1.0) if self.mode == "clip" else rate
        return torch.where((w > 0) & (g > 0), factor, 1.0), (g + w).isfinite()

    def _rescale(self, group: dict[str, Any], lane: Lane, factor: Tensor | float, ok: Tensor | None) -> None:
        grads = [local(p.grad) for p in lane.owners if p.grad is not None]
        decay = self._decay(group, lane)
        if decay:
            torch._foreach_add_(grads, lane.params, alpha=-decay if group.get("maximize") else decay)
        if not isinstance(factor, float):
            multiply_(grads, factor)
        if ok is not None:
            torch._foreach_copy_(grads, list(cleaned(grads, ok)))


def _flagged(lane: Lane, ok: Tensor) -> list[Tensor]:
    if bool(ok.all()):
        return []
    return [p for p, flag in zip(lane.owners, ok.tolist(), strict=True) if not flag]
