"""LAMB: Adam's update, rescaled so that each layer moves by a share of its own norm.

You et al., *Large Batch Optimization for Deep Learning: Training BERT in 76 minutes*, 2019 (arXiv 1904.00962)::

    m = b1 m + (1 - b1) g               m^ = m / (1 - b1^t)
    v = b2 v + (1 - b2) g²              v^ = v / (1 - b2^t)
    u = m^ / (sqrt(v^) + eps) + d w     d: weight decay
    w = w - lr phi(|w|) / |u| u         phi(z) = z, or clipped to [low, high]

Implementations differ, and here each difference is an option that must be asked for: ``debias=False`` leaves
out the bias correction, ``phi=(0, 10)`` clamps the weight norm at 10, ``max_grad_norm`` first scales all
gradients together. A ratio without meaning (phi(|w|) or |u| is 0) is 1; a tensor that is left out takes
AdamW's step.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from rueda.optim.engine.base import COMMON, Group, LayerwiseOptimizer, Work, known, require
from rueda.optim.engine.lanes import Item, Lane, State, state_like
from rueda.optim.engine.norms import square, squares
from rueda.optim.engine.tensors import Factor, chosen, cleaned, multiplied, multiply_
from rueda.optim.lamb_host import HostLamb


class LAMB(LayerwiseOptimizer):
    """Layer-wise adaptive moments.

    Args:
        params: parameters, or groups of them (``rueda.optim.parameter_groups``).
        lr: the share of its norm by which a layer moves.
        betas: b1 and b2.
        eps: added to sqrt(v^); above 0.
        weight_decay: d, part of the update and so of its norm.
        debias: correct both moments for their start at zero.
        phi: (low, high), the clip of the weight norm.
        max_grad_norm: scale all gradients of the optimizer to at most this norm, taken together.
        maximize, adapt, nonfinite, capturable, fused: see :class:`~rueda.optim.engine.base.LayerwiseOptimizer`.

    >>> w = torch.nn.Parameter(torch.tensor([[3.0, 4.0]]))   # |w| = 5
    >>> w.grad = torch.tensor([[7.0, -7.0]])                 # the first update is the sign, |u| = sqrt(2)
    >>> LAMB([w], lr=0.1).step()                             # moves by 0.1 * 5
    >>> w.data
    tensor([[2.6464, 4.3536]])
    """

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
        """Refuse numbers that make no sense."""
        phi = group["phi"]
        require("betas", all(0 <= beta < 1 for beta in group["betas"]), "both from 0 to below 1", group["betas"])
        require("eps", group["eps"] > 0, "above 0", group["eps"])
        require("phi", phi is None or 0 <= phi[0] <= phi[1] != 0, "(low, high) or None", phi)

    def begin(self, group: Group, p: Tensor) -> State:
        """Return two moments of zeros and a step count of 0."""
        return {"step": torch.zeros((), device=_step_device(group, p)), "exp_avg": state_like(p),
                "exp_avg_sq": state_like(p)}  # fmt: skip

    def prepare(self, work: Work) -> Work:
        """Scale all gradients to ``max_grad_norm`` if they are longer, without touching ``p.grad``."""
        limit = self.param_groups[0]["max_grad_norm"]
        if limit is None:
            return work
        total: float | Tensor = 0.0
        for _, items, lanes in work:
            total = total + sum(square(grad) for _, grad, _, _ in items)
            for lane in lanes:
                total = total + squares(lane.grads, shards=lane.shards).sum()
        norm = total.sqrt() if isinstance(total, Tensor) else torch.tensor(total, dtype=torch.float64).sqrt()
        factor = torch.clamp(limit / (norm + 1e-6), max=1.0)
        factor = torch.where(factor.isfinite() & (factor > 0), factor, 1.0)  # the tensors to blame are found later
        scaled: Work = []
        for group, items, lanes in work:
            for lane in lanes:
                lane.grads = multiplied(lane.grads, factor)
            if items and (scale := float(factor)) != 1.0:
                items = [(p, grad * scale, state, adapted) for p, grad, state, adapted in items]
            scaled.append((group, items, lanes))
        return scaled

    def update_items(self, group: Group, items: list[Item], bad: list[Tensor]) -> None:
        """See :mod:`rueda.optim.lamb_host`."""
        decays = self.decay_of(group, False), self.decay_of(group, True)
        HostLamb(group, decays, self.scratch, bad).step(items)

    def update_lane(
        self, group: Group, lane: Lane, weights: list[Tensor], grads: list[Tensor], norms: Tensor, ok: Tensor | None
    ) -> None:
        """The same as vectors: moments, update, ratio of each tensor, step."""
        (beta1, beta2), decay, lr = group["betas"], self.decay_of(group, lane.adapted), group["lr"]
        grads = list(cleaned(grads, ok))
        firsts, seconds = lane.buffers("exp_avg"), lane.buffers("exp_avg_sq")
        multiply_(firsts, chosen(ok, beta1, 1.0))
        torch._foreach_add_(firsts, grads, alpha=1.0 - beta1)
        multiply_(seconds, chosen(ok, beta2, 1.0))
        torch._foreach_addcmul_(seconds, grads, grads, 1.0 - beta2)
        denominators = list(torch._foreach_sqrt(seconds))
        counts = _count(group, lane, ok)
        if group["debias"]:
            multiply_(denominators, _each(counts, lambda t: (1.0 - beta2**t) ** -0.5))
        torch._foreach_add_(denominators, group["eps"])
        updates = list(torch._foreach_div(firsts, denominators))
        if group["debias"]:
            multiply_(updates, _each(counts, lambda t: 1.0 / (1.0 - beta1**t)))
        if decay:
            torch._foreach_add_(updates, weights, alpha=decay)
        rate: float | Tensor = lr
        if lane.adapted:
            w, u = norms[1], squares(updates, shards=lane.shards)[0].sqrt()
            if group["phi"] is not None:
                w = w.clamp(*group["phi"])
            rate = torch.where((w > 0) & (u > 0), lr * w / u, lr)
            ok = u.isfinite() if ok is None else ok & u.isfinite()
        if ok is not None:
            updates = list(cleaned(updates, ok))
            rate = chosen(ok, rate, 0.0)
        multiply_(updates, rate)
        torch._foreach_sub_(weights, updates)


def _step_device(group: Group, p: Tensor) -> torch.device:
    """Return where the step count lives: on the device where nothing may wait for it, else on the host, as torch's."""
    on_device = group["capturable"] or group["nonfinite"] == "skip"
    return p.device if on_device else torch.device("cpu")


def _count(group: Group, lane: Lane, ok: Tensor | None) -> list[float] | Tensor:
    """Advance the step counts of the lane and return them: host numbers, or a vector where nothing may wait."""
    for state, p in zip(lane.states, lane.params, strict=True):
        state["step"] = state["step"].to(_step_device(group, p))  # a loaded state may lie elsewhere
    steps = [state["step"] for state in lane.states]
    if ok is None:
        torch._foreach_add_(steps, 1.0)
        if not torch.compiler.is_compiling():
            return [step.item() for step in steps]
    else:
        torch._foreach_add_(steps, list(ok.to(torch.float32).unbind()))
    wide = torch.float32 if steps[0].device.type == "mps" else torch.float64
    return torch.stack(steps).to(wide).clamp(min=1.0)  # a tensor that was never stepped divides by nothing


def _each(counts: list[float] | Tensor, function: Any) -> Factor:
    result: Factor = function(counts) if isinstance(counts, Tensor) else [function(count) for count in counts]
    return result
