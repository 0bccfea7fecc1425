"""LARS: a learning rate for every layer, from the ratio of its weight to its gradient.

You, Gitman and Ginsburg, *Large Batch Training of Convolutional Networks*, 2017 (arXiv 1708.03888). A step
must not be long against the weights it changes, and |w| / |g| differs by orders of magnitude between layers::

    lambda = eta |w| / (|g| + beta |w|)             eta: trust, beta: weight decay
    v = m v + gamma lambda (g + beta w)             gamma: lr, m: momentum
    w = w - v

``form="clipped"`` bounds the local rate by the global one instead of multiplying the two::

    v = m v + min(gamma, lambda) (g + beta w)

A layer whose lambda has no meaning (a norm is 0) and one that is left out take gamma itself: momentum SGD.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, sqrt
from typing import Any

import torch
from torch import Tensor

from rueda.optim.engine.base import COMMON, Group, LayerwiseOptimizer, known, require
from rueda.optim.engine.host import fixed, runs, sgd
from rueda.optim.engine.lanes import Item, Lane, State, state_like
from rueda.optim.engine.norms import square
from rueda.optim.engine.tensors import chosen, cleaned, multiplied, multiply_


class LARS(LayerwiseOptimizer):
    """Layer-wise adaptive rate scaling.

    The rate stands inside the momentum, as in the paper: when it changes by a schedule, past steps keep their length.

    Args:
        params: parameters, or groups of them (``rueda.optim.parameter_groups``).
        lr: the global rate, gamma.
        momentum: m; 0 keeps no state.
        weight_decay: beta, part of the gradient.
        trust: eta, the share of a layer's norm that a step of rate 1 may move.
        nesterov: look ahead by one momentum step: w -= gamma lambda (g + beta w) + m v.
        form: ``"paper"`` or ``"clipped"``.
        eps: added to the denominator of lambda.
        maximize, adapt, nonfinite, capturable, fused: see :class:`~rueda.optim.engine.base.LayerwiseOptimizer`.

    >>> w = torch.nn.Parameter(torch.tensor([[3.0, 4.0]]))   # |w| = 5
    >>> w.grad = torch.tensor([[0.0, 10.0]])                 # |g| = 10
    >>> LARS([w], lr=2.0, trust=0.1).step()                  # lambda = 0.1 * 5 / 10
    >>> w.data
    tensor([[3., 3.]])
    """

    buffer = "momentum_buffer"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
        nesterov: bool = False,
        form: str = "paper",
        eps: float = 0.0,
        **options: Any,
    ) -> None:
        own = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust}
        super().__init__(params, {**COMMON, **own, "nesterov": nesterov, "form": form, "eps": eps, **known(options)})

    def check(self, group: Group) -> None:
        """Refuse numbers that make no sense."""
        require("momentum", 0 <= group["momentum"] < 1, "at least 0 and below 1", group["momentum"])
        require("trust", group["trust"] > 0, "above 0", group["trust"])
        require("eps", group["eps"] >= 0, "at least 0", group["eps"])
        require("form", group["form"] in ("paper", "clipped"), "'paper' or 'clipped'", group["form"])
        require("nesterov", not group["nesterov"] or group["momentum"] > 0, "False without momentum", True)

    def begin(self, group: Group, p: Tensor) -> State:
        """Return a momentum of zeros, if there is any momentum."""
        return {"momentum_buffer": state_like(p)} if group["momentum"] else {}

    def update_items(self, group: Group, items: list[Item], bad: list[Tensor]) -> None:
        """Two norms, then torch's fused SGD at rate 1, whose ``1 - dampening`` is this tensor's own rate."""
        lr, momentum, trust, eps = float(group["lr"]), group["momentum"], group["trust"], group["eps"]
        nesterov, clipped = group["nesterov"], group["form"] == "clipped"
        decays = self.decay_of(group, False), self.decay_of(group, True)
        one = fixed(1.0)
        numbers = {"momentum": momentum, "lr": one, "weight_decay": 0.0, "dampening": 0.0}
        numbers |= {"maximize": group["maximize"], "nesterov": False, "is_first_step": False}
        for run in runs(items):
            norms = [(square(grad), square(p) if adapted else 0.0) for p, grad, _, adapted in run]
            for (p, grad, state, adapted), (g2, w2) in zip(run, norms, strict=True):
                if not (g2 < inf and w2 < inf):  # NaN compares as false
                    bad.append(p)
                    continue
                decay, rate = decays[adapted], lr
                if g2 and w2:
                    w = sqrt(w2)
                    local = trust * w / (sqrt(g2) + decay * w + eps)
                    rate = min(lr, local) if clipped else lr * local
                numbers["weight_decay"] = decay
                if nesterov:
                    self._look_ahead(group, p, grad, state, decay, rate)
                elif momentum:
                    numbers["dampening"] = 1.0 - rate
                    sgd((p,), (grad,), (state["momentum_buffer"],), **numbers)
                else:
                    numbers["lr"] = rate
                    sgd((p,), (grad,), (), **numbers)

    def _look_ahead(self, group: Group, p: Tensor, grad: Tensor, state: State, decay: float, rate: float) -> None:
        """Scale first: the kernel's own look-ahead takes the gradient as it comes."""
        sign = -1.0 if group["maximize"] else 1.0
        step, buffers = self.scratch(p.numel(), p).view_as(p), [state["momentum_buffer"]]
        torch.add(grad, p, alpha=sign * decay, out=step).mul_(sign * rate)
        options = {"nesterov": True, "maximize": False, "is_first_step": False}
        sgd([p], [step], buffers, weight_decay=0.0, momentum=group["momentum"], lr=1.0, dampening=0.0, **options)

    def update_lane(
        self, group: Group, lane: Lane, weights: list[Tensor], grads: list[Tensor], norms: Tensor, ok: Tensor | None
    ) -> None:
        """The same as vectors: a rate for each tensor, then a chain of multi-tensor operations."""
        decay, momentum = self.decay_of(group, lane.adapted), group["momentum"]
        lr = group["lr"]
        rate: float | Tensor = lr
        if lane.adapted:
            g, w = norms
            local = group["trust"] * w / (g + decay * w + group["eps"])
            scaled = torch.clamp(local, max=lr) if group["form"] == "clipped" else lr * local
            rate = torch.where((w > 0) & (g > 0), scaled, lr)
        rate = chosen(ok, rate, 0.0)
        steps = list(torch._foreach_add(list(cleaned(grads, ok)), weights, alpha=decay))
        multiply_(steps, rate)
        if momentum:
            buffers = lane.buffers("momentum_buffer")
            multiply_(buffers, chosen(ok, momentum, 1.0))
            torch._foreach_add_(buffers, steps)
            moved = multiplied(buffers, ok) if ok is not None else buffers
            if group["nesterov"]:
                torch._foreach_add_(steps, moved, alpha=momentum)
            else:
                steps = moved
        torch._foreach_sub_(weights, steps)
