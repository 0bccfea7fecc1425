"""NovoGrad: momentum over gradients that are normalised layer by layer.

Ginsburg et al., *Stochastic Gradient Methods with Layer-wise Adaptive Moments for Training of Deep
Networks*, 2019 (arXiv 1905.11286). The second moment of Adam becomes one number per layer::

    v = |g|²                                at the first step
    v = b2 v + (1 - b2) |g|²                after it
    m = b1 m + (g / (sqrt(v) + eps) + d w)  d: weight decay
    w = w - a m                             a: lr

With ``grad_averaging`` the term in parentheses is multiplied by 1 - b1. Every tensor is normalised, also biases, whose
steps would otherwise have another scale; ``adapt`` only decides about weight decay.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, sqrt
from typing import Any

import torch
from torch import Tensor

from rueda.optim.checks import check_novograd
from rueda.optim.engine.base import COMMON, Group, LayerwiseOptimizer, known
from rueda.optim.engine.blocks import Blocks
from rueda.optim.engine.host import fixed, sgd
from rueda.optim.engine.lanes import Item, Lane, State, decay_of, state_like
from rueda.optim.engine.norms import BLOCK, square
from rueda.optim.engine.rates import add_decay_


class NovoGrad(LayerwiseOptimizer):
    """Momentum over layer-wise normalised gradients, with decoupled weight decay.

    Args:
        params: parameters, or groups of them.
        lr: the learning rate a.
        betas: b1 of the momentum, b2 of the squared norm.
        eps: added to sqrt(v); above 0.
        weight_decay: the factor d of the decay.
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
        """Refuse invalid options."""
        check_novograd(group)

    def begin(self, group: Group, p: Tensor) -> State:
        """Return a momentum of zeros and a squared norm of -1, which means that there is none yet.

        The norm is a Python number on the host path and a tensor in the lanes.
        """
        return {"exp_avg": state_like(p), "exp_avg_sq": -1.0}

    def update_items(self, group: Group, items: list[Item], bad: list[Tensor]) -> None:
        """Compute a norm, then call torch's fused SGD, whose ``1 - dampening`` scales the gradient of this tensor."""
        lr, (beta1, beta2), eps = float(group["lr"]), group["betas"], group["eps"]
        share, rest, dot = 1.0 - beta1 if group["grad_averaging"] else 1.0, 1.0 - beta2, torch.dot
        decays = decay_of(group, False), decay_of(group, True)
        numbers = {"momentum": beta1, "lr": fixed(lr), "weight_decay": 0.0, "dampening": 0.0}
        numbers |= {"maximize": group["maximize"], "nesterov": False, "is_first_step": False}
        for p, grad, state, adapted in items:  # little Python here: it is a tenth of the time of small tensors
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

    def update_lane(self, lane: Lane, blocks: Blocks, weights: list[Tensor], norms: Tensor, total: Tensor) -> Tensor:
        """Compute the same by operations on all tensors at once, with a vector of norms."""
        group, (beta1, beta2), ok = lane.group, lane.group["betas"], total < inf
        share = 1.0 - beta1 if group["grad_averaging"] else 1.0
        squares = self._average_squares(lane, blocks, norms[0].square(), ok, beta2)
        moves = ok.to(norms.dtype)
        b1, one = (blocks.constant(value, like=norms) for value in (beta1, 1.0))
        fresh = moves if share == 1.0 else moves * share
        scale, keep, fresh, rate = blocks.spread(
            torch.reciprocal(squares.sqrt_().add_(group["eps"])), torch.where(ok, b1, one), fresh, moves * group["lr"]
        )
        grads, averages = blocks.matrix("g"), lane.buffers("exp_avg")
        grads.mul_(scale).nan_to_num_(0.0, 0.0, 0.0)  # also those of a tensor that was never ok, whose scale is NaN
        add_decay_(lane, blocks.views("g"), weights)
        blocks.gather({"m": averages})
        average = blocks.matrix("m")
        average.mul_(keep).addcmul_(grads, fresh)
        blocks.scatter("m", averages)
        torch.mul(average, rate, out=grads)
        torch._foreach_sub_(weights, blocks.views("g"))
        return total

    def _average_squares(self, lane: Lane, blocks: Blocks, squares: Tensor, ok: Tensor, beta2: float) -> Tensor:
        """Advance v of the tensors that are ok; return all of them as a vector, negative if there is none yet."""
        for state in lane.states:
            if not isinstance(state["exp_avg_sq"], Tensor):  # from the host path, or before the first step
                state["exp_avg_sq"] = torch.full((), state["exp_avg_sq"], dtype=blocks.dtype, device=squares.device)
        kept = [state["exp_avg_sq"] for state in lane.states]
        old = torch.stack(kept).to(squares.dtype)
        new = torch.where(old < 0, squares, torch.lerp(old, squares, 1.0 - beta2))
        new = torch.where(ok, new, old)
        torch._foreach_copy_(kept, list(new.unbind()))
        return new
