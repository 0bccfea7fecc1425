"""NovoGrad: gradients normalised layer by layer, then momentum.

Ginsburg et al., *Stochastic Gradient Methods with Layer-wise Adaptive Moments for Training of Deep
Networks*, 2019 (arXiv 1905.11286). Adam's second moment shrinks to one number a layer::

    v = |g|²                                at the first step
    v = b2 v + (1 - b2) |g|²                after it
    m = b1 m + (g / (sqrt(v) + eps) + d w)  d: weight decay
    w = w - a m                             a: lr

With ``grad_averaging`` the bracket is multiplied by 1 - b1. Every tensor is normalised, biases too: without
it their steps would be of another scale; leaving a tensor out concerns the decay only.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, sqrt
from typing import Any

import torch
from torch import Tensor

from rueda.optim.engine.base import COMMON, Group, LayerwiseOptimizer, known, require
from rueda.optim.engine.host import fixed, sgd
from rueda.optim.engine.lanes import Item, Lane, State, state_like
from rueda.optim.engine.norms import BLOCK, square
from rueda.optim.engine.tensors import chosen, cleaned, multiplied, multiply_


class NovoGrad(LayerwiseOptimizer):
    """Momentum over layer-wise normalised gradients, with decoupled weight decay.

    Args:
        params: parameters, or groups of them.
        lr: a.
        betas: b1 of the momentum, b2 of the squared norm.
        eps: added to sqrt(v); above 0.
        weight_decay: d.
        grad_averaging: multiply what enters the momentum by 1 - b1.
        maximize, adapt, nonfinite, capturable, fused: see :class:`~rueda.optim.engine.base.LayerwiseOptimizer`.

    >>> w = torch.nn.Parameter(torch.tensor([[1.0, 1.0]]))
    >>> w.grad = torch.tensor([[3.0, 4.0]])                  # |g| = 5
    >>> NovoGrad([w], lr=0.5).step()
    >>> w.data
    tensor([[0.7000, 0.6000]])
    """

    needs_weight_norm = False

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-2,
        betas: tuple[float, float] = (0.95, 0.98),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        grad_averaging: bool = False,
        **options: Any,
    ) -> None:
        own = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "grad_averaging": grad_averaging}
        super().__init__(params, {**COMMON, **own, **known(options)})

    def check(self, group: Group) -> None:
        """Refuse numbers that make no sense."""
        require("betas", all(0 <= beta < 1 for beta in group["betas"]), "both from 0 to below 1", group["betas"])
        require("eps", group["eps"] > 0, "above 0", group["eps"])

    def begin(self, group: Group, p: Tensor) -> State:
        """Return a momentum of zeros and a squared norm of -1, which stands for none yet.

        The norm is a host number on the host path, which works with host numbers, and a tensor in the lanes.
        """
        return {"exp_avg": state_like(p), "exp_avg_sq": -1.0}

    def update_items(self, group: Group, items: list[Item], bad: list[Tensor]) -> None:
        """One norm, then torch's fused SGD, whose ``1 - dampening`` is this tensor's own scale of the gradient."""
        lr, (beta1, beta2), eps = float(group["lr"]), group["betas"], group["eps"]
        share, rest, dot = 1.0 - beta1 if group["grad_averaging"] else 1.0, 1.0 - beta2, torch.dot
        decays = self.decay_of(group, False), self.decay_of(group, True)
        numbers = {"momentum": beta1, "lr": fixed(lr), "weight_decay": 0.0, "dampening": 0.0}
        numbers |= {"maximize": group["maximize"], "nesterov": False, "is_first_step": False}
        for p, grad, state, adapted in items:  # as little Python as there can be: it is a tenth of small tensors' time
            line = grad.ravel()
            g2 = dot(line, line).item() if line.numel() <= BLOCK else square(line)
            if not g2 < inf:  # NaN compares as false
                bad.append(p)
                continue
            v = float(state["exp_avg_sq"])
            state["exp_avg_sq"] = v = g2 if v < 0 else beta2 * v + rest * g2
            norm = sqrt(v) + eps
            numbers["weight_decay"] = decays[adapted] * norm  # the kernel scales gradient and decay alike
            if beta1:
                numbers["dampening"] = 1.0 - share / norm
                sgd((p,), (grad,), (state["exp_avg"],), **numbers)
            else:
                numbers["lr"] = lr / norm
                sgd((p,), (grad,), (), **numbers)

    def update_lane(
        self, group: Group, lane: Lane, weights: list[Tensor], grads: list[Tensor], norms: Tensor, ok: Tensor | None
    ) -> None:
        """The same as vectors."""
        (beta1, beta2), decay = group["betas"], self.decay_of(group, lane.adapted)
        share = 1.0 - beta1 if group["grad_averaging"] else 1.0
        wide, device = norms.dtype, norms.device
        old = torch.stack([torch.as_tensor(s["exp_avg_sq"], dtype=wide, device=device) for s in lane.states])
        new = torch.where(old < 0, norms[0].square(), beta2 * old + (1.0 - beta2) * norms[0].square())
        if ok is not None:
            new = torch.where(ok, new, old)
        for state, value in zip(lane.states, new.to(grads[0].dtype).unbind(), strict=True):
            state["exp_avg_sq"] = _stored(state["exp_avg_sq"], value)
        scale = 1.0 / (new.clamp(min=0.0).sqrt() + group["eps"])
        fresh = multiplied(cleaned(grads, ok), scale)
        torch._foreach_add_(fresh, weights, alpha=decay)
        averages = lane.buffers("exp_avg")
        multiply_(averages, chosen(ok, beta1, 1.0))
        multiply_(fresh, chosen(ok, share, 0.0))
        torch._foreach_add_(averages, fresh)
        torch._foreach_sub_(weights, multiplied(averages, chosen(ok, group["lr"], 0.0)))


def _stored(place: float | Tensor, value: Tensor) -> Tensor:
    """Write into the tensor that is there, which a captured graph will read again; make one the first time."""
    return place.copy_(value) if isinstance(place, Tensor) else value.clone()
