"""Normalise every ghost of a batch by its own statistics, forward and backward.

For a ghost with n values per channel, mean mu and biased variance v, i = 1/sqrt(v + eps):

    y  = w i (x - mu) + b
    dw = sum dy i (x - mu)        db = sum dy
    dx = w i (dy - db/n - i (x - mu) dw/n)  =  A (dy + B x) + C   with one A, B, C per ghost and channel

Three routes give the same numbers:

*rows*        CPU, float32 and float64. A ghost is seen as a matrix whose columns belong to channels (channels-last
              memory: [b H W, C]; contiguous memory: [b, C H W]), so that every pass is one long vectorised loop with
              a row of coefficients, written into one output. A ghost is finished before the next one is touched.
*native*      CPU, bfloat16 and float16, or images so large that a row of coefficients would leave the cache:
              torch's own batch-norm kernels, ghost by ghost, into one output.
*vectorised*  anything else (CUDA, torch.compile, torch.func, a second derivative): all ghosts at once in plain torch
              operations, differentiable any number of times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rueda.nn import ghost_rows


def normalise_ghosts(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, sizes: Sequence[int], eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise each ghost of `x` by its own mean and variance.

    Args:
        x: [N, C, ...].
        weight, bias: [C], or None.
        sizes: examples per ghost, summing to N, all equal but the last.
        eps: added to the variance.

    Returns:
        y like x, and each ghost's mean and biased variance, [G, C] (no gradient flows through these two).

    >>> x = torch.tensor([[0.0], [2.0], [10.0], [30.0]])
    >>> y, mean, variance = normalise_ghosts(x, None, None, (2, 2), eps=0.0)
    >>> y.flatten().tolist(), mean.flatten().tolist(), variance.flatten().tolist()
    ([-1.0, 1.0, -1.0, 1.0], [1.0, 20.0], [1.0, 100.0])
    """
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        y, mean, variance = vectorised(x, weight, bias, sizes, eps)
        return y, mean.detach(), variance.detach()
    return _Ghosts.apply(x, weight, bias, list(sizes), eps)  # type: ignore[no-untyped-call, no-any-return]


def vectorised(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, sizes: Sequence[int], eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Do the same in plain torch operations, all ghosts of one size at once."""
    outputs, means, variances = [], [], []
    for part, num_ghosts in _equal_parts(x, sizes):
        ghosts = part.view(num_ghosts, -1, *part.shape[1:])  # [G, b, C, ...]
        values = ghosts.to(torch.promote_types(ghosts.dtype, torch.float32))
        over = [1, *range(3, values.dim())]
        variance, mean = torch.var_mean(values, over, correction=0, keepdim=True)
        scale = torch.rsqrt(variance + eps)
        if weight is not None:
            scale = scale * _per_channel(weight, values)
        shift = -mean * scale
        if bias is not None:
            shift = shift + _per_channel(bias, values)
        outputs.append(torch.addcmul(shift, values, scale).to(x.dtype).flatten(0, 1))
        means.append(mean.view(num_ghosts, -1))
        variances.append(variance.view(num_ghosts, -1))
    if len(outputs) == 1:
        return outputs[0], means[0], variances[0]
    return torch.cat(outputs), torch.cat(means), torch.cat(variances)


class _Ghosts(torch.autograd.Function):
    """Choose the route, and keep what the way back needs."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, sizes: list[int], eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        if not (x.is_contiguous() or ghost_rows.is_channels_last(x)):
            x = x.contiguous()
        if x.device.type != "cpu":
            y, mean, variance = vectorised(x, weight, bias, sizes, eps)
        elif ghost_rows.has_rows(x):
            y, mean, variance = ghost_rows.forward_rows(x, weight, bias, sizes, eps)
        else:
            y, mean, variance = ghost_rows.forward_native(x, weight, bias, sizes, eps)
        ctx.save_for_backward(x, weight, bias, mean, torch.rsqrt(variance + eps))
        ctx.sizes, ctx.eps = sizes, eps
        ctx.mark_non_differentiable(mean, variance)
        ctx.set_materialize_grads(False)
        return y, mean, variance

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, *unused: object) -> tuple[Tensor | None, ...]:
        if dy is None:
            return None, None, None, None, None
        x, weight, bias, mean, inverse = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True: the derivative must itself be differentiable
            inputs = [each for each in (x, weight, bias) if each is not None and each.requires_grad]
            y, _, _ = vectorised(x, weight, bias, ctx.sizes, ctx.eps)
            found = iter(torch.autograd.grad(y, inputs, dy, create_graph=True))
            grads = [next(found) if each is not None and each.requires_grad else None for each in (x, weight, bias)]
            return *grads, None, None
        if ghost_rows.is_channels_last(x):
            dy = dy.movedim(1, -1).contiguous().movedim(-1, 1)
        else:
            dy = dy.contiguous()
        if x.device.type != "cpu":
            dx, dw, db = _backward_vectorised(dy, x, weight, mean, inverse, ctx.sizes)
        elif ghost_rows.has_rows(x):
            dx, dw, db = ghost_rows.backward_rows(dy, x, weight, mean, inverse, ctx.sizes)
        else:
            dx, dw, db = ghost_rows.backward_native(dy, x, weight, mean, inverse, ctx.sizes, ctx.eps)
        return dx, None if weight is None else dw, None if bias is None else db, None, None


def _backward_vectorised(
    dy: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, inverse: Tensor, sizes: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    outputs, dws, dbs = [], [], []
    start = 0
    for (dy_part, num_ghosts), (x_part, _) in zip(_equal_parts(dy, sizes), _equal_parts(x, sizes), strict=True):
        dyg = dy_part.view(num_ghosts, -1, *x.shape[1:]).to(mean.dtype)  # [G, b, C, ...]
        xg = x_part.view(num_ghosts, -1, *x.shape[1:]).to(mean.dtype)
        over = [1, *range(3, xg.dim())]
        n = xg.numel() // mean[start : start + num_ghosts].numel()
        mu, i = (_per_channel(each[start : start + num_ghosts], xg) for each in (mean, inverse))
        db = dyg.sum(over, keepdim=True)
        dw = (dyg * (xg - mu)).sum(over, keepdim=True) * i
        a = i if weight is None else i * _per_channel(weight, xg)
        b = i * dw / -n
        c = a * (db / -n - b * mu)
        outputs.append(torch.addcmul(c, torch.addcmul(dyg, xg, b), a).to(x.dtype).flatten(0, 1))
        dws.append(dw.sum(0).flatten())
        dbs.append(db.sum(0).flatten())
        start += num_ghosts
    kind = mean.dtype if weight is None else weight.dtype
    return torch.cat(outputs), torch.stack(dws).sum(0).to(kind), torch.stack(dbs).sum(0).to(kind)


def _equal_parts(x: Tensor, sizes: Sequence[int]) -> list[tuple[Tensor, int]]:
    """Cut `x` into the part of equal ghosts and, if there is one, the last ghost of another size."""
    if sizes[-1] == sizes[0]:
        return [(x, len(sizes))]
    last = sizes[-1]
    return [(x[:-last], len(sizes) - 1), (x[-last:], 1)]


def _per_channel(values: Tensor, ghosts: Tensor) -> Tensor:
    """Shape [C] or [G, C] to stand against [G, b, C, ...]."""
    rest = [1] * (ghosts.dim() - 3)
    if values.dim() == 1:
        return values.view(1, 1, -1, *rest)
    return values.view(values.shape[0], 1, values.shape[1], *rest)
