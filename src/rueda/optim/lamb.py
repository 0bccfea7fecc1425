"""LAMB: Adam's update, rescaled so that each layer moves by a fraction of its own norm.

You et al., *Large Batch Optimization for Deep Learning: Training BERT in 76 minutes*, 2019 (arXiv 1904.00962)::

    m = b1 m + (1 - b1) g               m^ = m / (1 - b1^t)
    v = b2 v + (1 - b2) g²              v^ = v / (1 - b2^t)
    u = m^ / (sqrt(v^) + eps) + d w     d: weight decay
    w = w - lr phi(|w|) / |u| u         phi(z) = z, or clipped to [low, high]

Implementations differ, and each difference is an option here: ``debias=False`` omits the bias correction,
``phi=(0, 10)`` clamps the weight norm at 10, ``max_grad_norm`` first scales all gradients together. If phi(|w|) or |u|
is 0, the ratio is 1; a tensor that is not adapted makes the step of AdamW.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, log, sqrt
from typing import Any

import torch
from torch import Tensor

from rueda.optim.checks import check_lamb, require
from rueda.optim.engine.base import COMMON, Group, LayerwiseOptimizer, SortedTensors, known
from rueda.optim.engine.blocks import Blocks
from rueda.optim.engine.lanes import Item, Lane, State, decay_of, state_like
from rueda.optim.engine.norms import norms as norms_of
from rueda.optim.engine.norms import square
from rueda.optim.engine.rates import add_decay_
from rueda.optim.lamb_host import HostLamb

_LOG_OF_0 = -1e4  # exp of it is 0, and 0 times it is 0, unlike -inf


class LAMB(LayerwiseOptimizer):
    """Layer-wise adaptive moments.

    Args:
        params: parameters, or groups of them (``rueda.optim.parameter_groups``).
        lr: the fraction of its norm by which a layer moves.
        betas: b1 and b2.
        eps: added to sqrt(v^); above 0.
        weight_decay: d, part of the update and so of its norm.
        debias: correct the bias of both moments, which start at zero.
        phi: (low, high), the limits of the weight norm.
        max_grad_norm: scale all gradients of the optimizer together to at most this norm.
        maximize, adapt, nonfinite, capturable, fused: see :class:`~rueda.optim.engine.base.LayerwiseOptimizer`.

    >>> w = torch.nn.Parameter(torch.tensor([[3.0, 4.0]]))   # |w| = 5
    >>> w.grad = torch.tensor([[7.0, -7.0]])                 # the first update is the sign, |u| = sqrt(2)
    >>> LAMB([w], lr=0.1).step()                             # moves by 0.1 * 5
    >>> w.data
    tensor([[2.6464, 4.3536]])
    """

    slot = "gq"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        debias: bool = True,
        phi: tuple[float, float] | None = None,
        max_grad_norm: float | None = None,
        **options: Any,
    ) -> None:
        own = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "debias": debias, "phi": phi}
        require("max_grad_norm", max_grad_norm is None or max_grad_norm > 0, "above 0 or None", max_grad_norm)
        super().__init__(params, {**COMMON, **own, "max_grad_norm": max_grad_norm, **known(options)})

    def check(self, group: Group) -> None:
        """Refuse invalid options."""
        check_lamb(group)

    def begin(self, group: Group, p: Tensor) -> State:
        """Return two moments of zeros and a step count of 0, which is on the device: the host need not know it."""
        return {"step": torch.zeros((), device=p.device), "exp_avg": state_like(p), "exp_avg_sq": state_like(p)}

    def prepare(self, tensors: SortedTensors) -> SortedTensors:
        """Scale all gradients to ``max_grad_norm`` if their norm is larger, without changing ``p.grad``."""
        limit = self.param_groups[0]["max_grad_norm"]
        if limit is None:
            return tensors
        parts = [norms_of(lane.grads, shards=lane.shards)[0] for lane in tensors.lanes]
        if items := [item for _, some in tensors.items for item in some]:
            parts.append(torch.tensor([sqrt(sum(square(grad) for _, grad, _, _ in items))], dtype=torch.float64))
        if not parts:
            return tensors
        norm = torch.linalg.vector_norm(torch.cat([part.to(parts[0]) for part in parts]) if parts[1:] else parts[0])
        factor = torch.clamp(limit / (norm + 1e-6), max=1.0).nan_to_num_(1.0)
        factor.masked_fill_(factor == 0, 1.0)  # of an infinite norm: such tensors are found later
        for lane in tensors.lanes:
            lane.scale = factor.to(lane.params[0].device)
        found = tensors.items
        if items and (scale := float(factor)) != 1.0:
            found = [
                (group, [(p, g * scale, state, adapted) for p, g, state, adapted in some]) for group, some in found
            ]
        return SortedTensors(found, tensors.lanes)

    def update_items(self, group: Group, items: list[Item], bad: list[Tensor]) -> None:
        """Step the tensors as :mod:`rueda.optim.lamb_host` explains."""
        decays = decay_of(group, False), decay_of(group, True)
        HostLamb(group, decays, self.scratch, bad).step(items)

    def gathered(self, lane: Lane) -> dict[str, list[Tensor]]:
        """Return both moments, which are two planes of one slot."""
        return {"mv": lane.buffers("exp_avg") + lane.buffers("exp_avg_sq")}

    def counts(self, lane: Lane) -> list[Tensor]:
        """Return the step count of each tensor."""
        for state, p in zip(lane.states, lane.params, strict=True):
            state["step"] = state["step"].to(p.device)  # a loaded state may be on another device
        return [state["step"] for state in lane.states]

    def update_lane(self, lane: Lane, blocks: Blocks, weights: list[Tensor], norms: Tensor, total: Tensor) -> Tensor:
        """Compute moments, updates, a vector of ratios, and the step by operations on all tensors at once.

        ``lerp`` with a weight of 0 keeps the moments of a tensor that is skipped; its gradients must be finite for
        that, and their squares as well. The rate of such a tensor is not finite, which makes its step 0.
        """
        group, (_, w, counts) = lane.group, norms
        numbers = blocks.spread_table(self._numbers(lane, blocks, counts, total))
        gradients, moments = blocks.planes("gq"), blocks.planes("mv")  # the gradient and its square, m and v
        torch.square(gradients[0], out=gradients[1])
        moments.lerp_(gradients.nan_to_num_(0.0, 0.0, 0.0), numbers[:2])
        blocks.scatter("mv", self.gathered(lane)["mv"])
        if group["debias"]:
            zero = blocks.constant(0.0, like=moments)
            update, second = torch.addcdiv(zero, moments, numbers[3:], value=-1.0, out=gradients)
        else:
            update, second = gradients.copy_(moments)
        update.div_(second.sqrt_().add_(group["eps"]))
        updates = blocks.views("gq")[: len(weights)]
        add_decay_(lane, updates, weights)
        u = norms_of(updates, shards=lane.shards)[0]
        total = total + u
        # 0 * total is 0, or nan where a norm is not finite.
        (rate,) = blocks.spread(self._rates(lane, blocks, w, u).add_(total, alpha=0.0))
        update.mul_(rate).nan_to_num_(0.0, 0.0, 0.0)
        torch._foreach_sub_(weights, updates)
        return total

    def _numbers(self, lane: Lane, blocks: Blocks, counts: Tensor, total: Tensor) -> Tensor:
        """Advance the step counts; return 1 - b1, 1 - b2, 1 (all 0 where the total is not finite), b1^t - 1, b2^t - 1.

        After t steps, expm1(t log b) is accurate in float32, too. Without bias correction the last two are missing.
        """
        betas, debias = lane.group["betas"], lane.group["debias"]
        logs = [log(beta) if beta else _LOG_OF_0 for beta in betas] if debias else []
        constants = blocks.constant(*(1.0 - beta for beta in betas), 1.0, *logs, like=counts).unsqueeze(1)
        numbers = (total < inf) * constants  # [5 or 3, tensors]
        steps = [state["step"] for state in lane.states]
        torch._foreach_add_(steps, list(numbers[2].to(steps[0].dtype).unbind()))
        if debias:
            numbers[3:].addcmul_(counts, constants[3:]).expm1_()
        return numbers

    def _rates(self, lane: Lane, blocks: Blocks, w: Tensor, u: Tensor) -> Tensor:
        """Return lr phi(|w|) / |u| of each tensor; lr if |w| is 0 or the tensor is not adapted."""
        lr = lane.group["lr"]
        if lane.group["phi"] is not None:
            w = w.clamp(*lane.group["phi"])
        unit = 1.0 if isinstance(lr, Tensor) else lr
        offsets = blocks.constant(*(0.0 if adapted else -inf for adapted in lane.adapted), like=w)
        rates = torch.threshold(torch.addcdiv(offsets, w, u, value=unit), 0.0, unit)
        return rates * lr if isinstance(lr, Tensor) else rates
