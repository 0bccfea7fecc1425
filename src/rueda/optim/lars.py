"""LARS: a learning rate for each layer, from the ratio of the norms of its weights and its gradient.

You, Gitman and Ginsburg, *Large Batch Training of Convolutional Networks*, 2017 (arXiv 1708.03888). A step should be
short compared with the weights that it changes, but |w| / |g| differs by orders of magnitude between layers::

    lambda = eta |w| / (|g| + beta |w|)             eta: trust, beta: weight decay
    v = m v + gamma lambda (g + beta w)             gamma: lr, m: momentum
    w = w - v

``form="clipped"`` limits the local rate to the global one instead of multiplying the two::

    v = m v + min(gamma, lambda) (g + beta w)

A layer for which a norm is 0, or which is not adapted, uses gamma itself: this is SGD with momentum.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, sqrt
from typing import Any

import torch
from torch import Tensor

from rueda.optim.checks import check_lars
from rueda.optim.engine.base import COMMON, Group, LayerwiseOptimizer, known
from rueda.optim.engine.blocks import Blocks
from rueda.optim.engine.host import fixed, runs, sgd
from rueda.optim.engine.lanes import Item, Lane, State, decay_of, state_like
from rueda.optim.engine.norms import square
from rueda.optim.engine.rates import add_decay_, local_rates


class LARS(LayerwiseOptimizer):
    """Layer-wise adaptive rate scaling.

    The rate is part of the momentum, as in the paper: when a schedule changes it, past steps keep their length.

    Args:
        params: parameters, or groups of them (``rueda.optim.parameter_groups``).
        lr: the global rate, gamma.
        momentum: m; 0 keeps no state.
        weight_decay: beta, part of the gradient.
        trust: eta, the fraction of a layer's norm by which a step at rate 1 moves it.
        nesterov: use Nesterov momentum: w -= gamma lambda (g + beta w) + m v.
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
        """Refuse invalid options."""
        check_lars(group)

    def begin(self, group: Group, p: Tensor) -> State:
        """Return a momentum of zeros, if there is any momentum."""
        return {"momentum_buffer": state_like(p)} if group["momentum"] else {}

    def update_items(self, group: Group, items: list[Item], bad: list[Tensor]) -> None:
        """Compute two norms, then call torch's fused SGD at rate 1; ``1 - dampening`` is the rate of each tensor."""
        lr, momentum, trust, eps = float(group["lr"]), group["momentum"], group["trust"], group["eps"]
        nesterov, clipped = group["nesterov"], group["form"] == "clipped"
        decays = decay_of(group, False), decay_of(group, True)
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
        """Step with Nesterov momentum; the gradient is scaled first, since the kernel uses it unscaled."""
        sign = -1.0 if group["maximize"] else 1.0
        step, buffers = self.scratch(p.numel(), p).view_as(p), [state["momentum_buffer"]]
        torch.add(grad, p, alpha=sign * decay, out=step).mul_(sign * rate)
        options = {"nesterov": True, "maximize": False, "is_first_step": False}
        sgd([p], [step], buffers, weight_decay=0.0, momentum=group["momentum"], lr=1.0, dampening=0.0, **options)

    def update_lane(self, lane: Lane, blocks: Blocks, weights: list[Tensor], norms: Tensor, total: Tensor) -> Tensor:
        """Compute a vector of rates, one per tensor, then a chain of operations on all tensors at once."""
        group, momentum, lr, ok = lane.group, lane.group["momentum"], lane.group["lr"], total < inf
        local = local_rates(lane, blocks, norms, group["trust"], group["eps"])
        zero, one, m, most = (blocks.constant(value, like=norms) for value in (0.0, 1.0, momentum, inf))
        if group["form"] == "clipped":
            rates = torch.clamp(torch.where(local > 0, local, most), max=lr)
        else:
            rates = torch.where(local > 0, local, one) * lr
        rate, keep, moves = blocks.spread(torch.where(ok, rates, zero), torch.where(ok, m, one), ok.to(norms.dtype))
        steps = blocks.matrix("g")
        add_decay_(lane, blocks.views("g"), weights)
        steps.nan_to_num_(0.0, 0.0, 0.0).mul_(rate)
        if momentum:
            buffers = lane.buffers("momentum_buffer")
            blocks.gather({"v": buffers})
            velocity = blocks.matrix("v")
            torch.addcmul(steps, velocity, keep, out=velocity)
            blocks.scatter("v", buffers)
            if group["nesterov"]:
                steps.add_(velocity.mul_(moves), alpha=momentum)
            else:
                torch.mul(velocity, moves, out=steps)
        torch._foreach_sub_(weights, blocks.views("g"))
        return total
