"""LAMB on the CPU: small tensors are finished while they are in the cache, large ones are processed in chunks.

There are three kinds of tensors, each with as few streams of memory as possible (AdamW itself needs 7):

- tensors that are not adapted are stepped by AdamW's kernel, all in one call;
- small ones are gathered into buckets of one chunk, whose updates, norms and steps are done within the cache: 7
  streams;
- large ones write their update to a scratch buffer chunk by chunk, and a second pass adds it to the weights: 10
  streams.

A gradient that is not finite shows in the norm of the update, after it has entered the moments. For
``nonfinite="raise"`` that is early enough: the weights are kept, and the moments of that tensor are reset. For
``"skip"`` the moments must not change, so the norm of the gradient is computed first, which costs one more stream.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, sqrt
from typing import Any

import torch
from torch import Tensor

from rueda.optim.engine.host import adam, chunk, fixed, sgd
from rueda.optim.engine.lanes import Item, State
from rueda.optim.engine.norms import square

_FAR = 1e9  # a step count at which the bias correction is exactly 1


class HostLamb:
    """One step of a parameter group's CPU tensors.

    Args:
        group: the parameter group.
        decays: the weight decay of tensors that are not adapted, and of those that are.
        scratch: returns a reused one-dimensional buffer of a given size.
        bad: receives the tensors that were not stepped because they are not finite.
    """

    def __init__(
        self,
        group: dict[str, Any],
        decays: tuple[float, float],
        scratch: Callable[[int, Tensor], Tensor],
        bad: list[Tensor],
    ) -> None:
        self.lr, self.phi, self.debias = float(group["lr"]), group["phi"], group["debias"]
        self.plain_decay, self.decay = decays
        self.scratch, self.bad, self.limit = scratch, bad, chunk()
        self.checks_gradients = group["nonfinite"] == "skip"
        beta1, beta2 = group["betas"]
        self.overwrite = fixed(-1.0)
        self.numbers = {"beta1": beta1, "beta2": beta2, "eps": group["eps"], "maximize": group["maximize"]}

    def step(self, items: list[Item]) -> None:
        """Step all tensors that have finite gradients."""
        limit, size = self.limit, 0
        bucket: list[tuple[Tensor, Tensor, State, int]] = []
        plain: list[tuple[Tensor, Tensor, State, int]] = []
        for p, grad, state, adapted in items:
            if (self.checks_gradients or not adapted) and not square(grad) < inf:  # NaN compares as false
                self.bad.append(p)
                continue
            count = p.numel()
            if not adapted:
                plain.append((p, grad, state, count))
            elif count > limit:
                self._step_large(p, grad, state)
            else:
                if size + count > limit:
                    self._step_bucket(bucket, size)
                    bucket, size = [], 0
                bucket.append((p, grad, state, count))
                size += count
        if bucket:
            self._step_bucket(bucket, size)
        if plain:
            params, grads, states, _ = zip(*plain, strict=True)
            self._adam(params, grads, states, self.lr, self.plain_decay)

    def _adam(self, targets: Any, grads: Any, states: tuple[State, ...], lr: Any, decay: float) -> None:
        steps = [state["step"] for state in states]
        torch._foreach_add_(steps, torch.ones(()), alpha=1.0)  # a Python number would be wrapped once per tensor
        if not self.debias:
            steps = [torch.full((), _FAR)] * len(steps)
        firsts, seconds = [state["exp_avg"] for state in states], [state["exp_avg_sq"] for state in states]
        adam(targets, grads, firsts, seconds, steps, lr=lr, weight_decay=decay, **self.numbers)

    def _step_bucket(self, bucket: list[tuple[Tensor, Tensor, State, int]], size: int) -> None:
        params, grads, states, counts = zip(*bucket, strict=True)
        weights = [p.ravel() for p in params]
        line, dot, lr, phi = self.scratch(size, params[0]), torch.dot, self.lr, self.phi
        if self.decay:
            torch.cat(weights, out=line)
        updates = line.split_with_sizes(counts)
        self._adam(updates, grads, states, self.overwrite, self.decay - 1.0)  # the scratch now holds u
        for p, weight, update, state in zip(params, weights, updates, states, strict=True):
            scale = _scale(lr, phi, dot(weight, weight).item(), dot(update, update).item())
            if scale is None:
                self._skip(p, update, state)
            else:
                weight.add_(update, alpha=-scale)

    def _step_large(self, p: Tensor, grad: Tensor, state: State) -> None:
        decay, dot = self.decay, torch.dot
        numbers = {"lr": self.overwrite, "weight_decay": -1.0, **self.numbers}
        weight, update = p.ravel(), self.scratch(p.numel(), p)
        state["step"].add_(1.0)
        steps = [state["step"] if self.debias else torch.full((), _FAR)]
        lines = (update, grad.ravel(), state["exp_avg"].ravel(), state["exp_avg_sq"].ravel(), weight)
        w2 = r2 = rw = 0.0
        for u, g, m, v, w in zip(*(torch.split(line, self.limit) for line in lines), strict=True):
            adam([u], [g], [m], [v], steps, **numbers)  # u becomes Adam's update r
            w2 += dot(w, w).item()
            r2 += dot(u, u).item()
            if decay:
                rw += dot(u, w).item()
        u2 = r2 + 2.0 * decay * rw + decay * decay * w2  # |r + d w|², with no pass that forms r + d w
        if u2 < 1e-3 * r2:  # the terms nearly cancel, so compute the norm itself
            u2 = square(torch.add(update, weight, alpha=decay))
        scale = _scale(self.lr, self.phi, w2, u2)
        if scale is None:
            self._skip(p, update, state)
        else:
            options = {"nesterov": False, "maximize": False, "is_first_step": False}
            sgd([weight], [update], [], weight_decay=decay, momentum=0.0, lr=scale, dampening=0.0, **options)

    def _skip(self, p: Tensor, update: Tensor, state: State) -> None:
        """Keep the weights; reset the moments if a non-finite gradient has entered them."""
        self.bad.append(p)
        update.zero_()  # the scratch is used again, and 0 times NaN is NaN
        if not self.checks_gradients:
            for value in state.values():
                value.zero_()


def _scale(lr: float, phi: tuple[float, float] | None, w2: float, u2: float) -> float | None:
    """Return lr phi(|w|) / |u| from |w|² and |u|²; None if they are not finite."""
    if not (w2 < inf and u2 < inf):  # NaN compares as false
        return None
    w, u = sqrt(w2), sqrt(u2)
    if phi is not None:
        w = min(max(w, phi[0]), phi[1])
    return lr * w / u if w and u else lr
