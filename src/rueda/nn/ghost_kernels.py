"""Normalise every ghost of a batch by its own statistics, forward and backward.

For a ghost with n values per channel, mean mu, biased variance v and i = 1/sqrt(v + eps), with weight w and bias b:

    y  = w i (x - mu) + b
    dw = sum dy i (x - mu)        db = sum dy
    dx = w i (dy - db/n - i (x - mu) dw/n)  =  A (dy + B x) + C   with one A, B, C per ghost and channel

There are four implementations, which agree up to rounding:

- *compiled*, for float32 and float64 in channels-last memory on the CPU, where there is a C compiler: a kernel that
  reads each ghost once from memory and once from the cache (`rueda.nn.ghost_compiled`).
- *rows*, for float32 and float64 on the CPU otherwise: a ghost of m examples is viewed as a matrix in which each column
  belongs to one channel (channels-last memory: [m H W, C]; contiguous memory: [m, C H W]). So every pass is one long
  vectorised loop with a row of coefficients, and all ghosts are written into one output. A few ghosts, as many as fit
  in the cache, are finished before the next ones are read.
- *native*, for bfloat16 and float16 on the CPU, and for images so large that a row of coefficients does not fit in the
  cache: torch's own batch-norm kernels are called ghost by ghost, and write into one output.
- *vectorised*, for everything else (CUDA, torch.compile, torch.func, second derivatives): all ghosts are computed at
  once in plain torch operations, which can be differentiated any number of times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rueda.nn import ghost_compiled, ghost_rows


def normalise_ghosts(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, sizes: Sequence[int], eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise each ghost of `x` by its own mean and variance.

    Args:
        x: [N, C, ...].
        weight, bias: [C], or None.
        sizes: the number of examples in each ghost; their sum is N, and all but the last are equal.
        eps: added to the variance.

    Returns:
        The output y, shaped like x, and each ghost's mean and biased variance, [G, C]; no gradient flows through these
        two.

    >>> x = torch.tensor([[0.0], [2.0], [10.0], [30.0]])
    >>> y, mean, variance = normalise_ghosts(x, None, None, (2, 2), eps=0.0)
    >>> y.flatten().tolist(), mean.flatten().tolist(), variance.flatten().tolist()
    ([-1.0, 1.0, -1.0, 1.0], [1.0, 20.0], [1.0, 100.0])
    """
    if is_transformed():
        y, mean, variance, _ = vectorised(x, weight, bias, sizes, eps)
        return y, mean.detach(), variance.detach()
    return _Ghosts.apply(x, weight, bias, list(sizes), eps)  # type: ignore[no-untyped-call, no-any-return]


def is_transformed() -> bool:
    """Tell whether the code is being compiled or transformed by torch.func, so that tensors are not ordinary ones."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def vectorised(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, sizes: Sequence[int], eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute :func:`normalise_ghosts` in plain torch operations, all ghosts of one size at once.

    Also return 1/sqrt(variance + eps), [G, C], which the backward pass needs.
    """
    parts = []
    for part, num_ghosts in _equal_parts(x, sizes):
        ghosts = part.view(num_ghosts, -1, *part.shape[1:])  # [G, b, C, ...]
        values = ghosts.to(torch.promote_types(ghosts.dtype, torch.float32))
        over = [1, *range(3, values.dim())]
        variance, mean = torch.var_mean(values, over, correction=0, keepdim=True)
        inverse = torch.rsqrt(variance + eps)
        scale = inverse if weight is None else inverse * _per_channel(weight, values)
        shift = -mean * scale if bias is None else torch.addcmul(_per_channel(bias, values), mean, scale, value=-1)
        y = torch.addcmul(shift, values, scale).to(x.dtype).flatten(0, 1)
        parts.append((y, *(each.view(num_ghosts, -1) for each in (mean, variance, inverse))))
    y, mean, variance, inverse = parts[0] if len(parts) == 1 else map(torch.cat, zip(*parts, strict=True))
    return y, mean, variance, inverse


class _Ghosts(torch.autograd.Function):
    """Chooses the implementation, and saves what the backward pass needs."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, sizes: list[int], eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        if not (x.is_contiguous() or ghost_rows.is_channels_last(x)):
            x = x.contiguous()
        inverse = kernel = None
        if x.device.type == "cpu" and ghost_rows.is_channels_last(x):
            kernel = ghost_compiled.kernel(x.dtype)
        if kernel is not None:
            y, mean, variance = ghost_compiled.forward_compiled(kernel, x, weight, bias, sizes, eps)
        elif x.device.type != "cpu":
            y, mean, variance, inverse = vectorised(x, weight, bias, sizes, eps)
        elif ghost_rows.has_rows(x):
            y, mean, variance = ghost_rows.forward_rows(x, weight, bias, sizes, eps)
        else:
            y, mean, variance = ghost_rows.forward_native(x, weight, bias, sizes, eps)
        ctx.save_for_backward(x, weight, bias, mean, torch.rsqrt(variance + eps) if inverse is None else inverse)
        ctx.sizes, ctx.eps, ctx.kernel = sizes, eps, kernel
        ctx.mark_non_differentiable(mean, variance)
        ctx.set_materialize_grads(False)
        return y, mean, variance

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, *unused: object) -> tuple[Tensor | None, ...]:
        if dy is None:
            return None, None, None, None, None
        x, weight, bias, mean, inverse = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True: the gradient must itself be differentiable
            inputs = [each for each in (x, weight, bias) if each is not None and each.requires_grad]
            y, *_ = vectorised(x, weight, bias, ctx.sizes, ctx.eps)
            found = iter(torch.autograd.grad(y, inputs, dy, create_graph=True))
            grads = [next(found) if each is not None and each.requires_grad else None for each in (x, weight, bias)]
            return *grads, None, None
        if ghost_rows.is_channels_last(x):
            dy = dy.movedim(1, -1).contiguous().movedim(-1, 1)
        else:
            dy = dy.contiguous()
        if ctx.kernel is not None:
            dx, dw, db = ghost_compiled.backward_compiled(ctx.kernel, dy, x, weight, mean, inverse, ctx.sizes)
        elif x.device.type != "cpu":
            dx, dw, db = _backward_vectorised(dy, x, weight, mean, inverse, ctx.sizes)
        elif ghost_rows.has_rows(x):
            dx, dw, db = ghost_rows.backward_rows(dy, x, weight, mean, inverse, ctx.sizes)
        else:
            dx, dw, db = ghost_rows.backward_native(dy, x, weight, mean, inverse, ctx.sizes, ctx.eps)
        return dx, None if weight is None else dw, None if bias is None else db, None, None


def _backward_vectorised(
    dy: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, inverse: Tensor, sizes: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    parts = []
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
        b = (i * dw).div_(-n)
        c = (db / -n).addcmul_(b, mu, value=-1).mul_(a)
        dx = torch.addcmul(c, torch.addcmul(dyg, xg, b), a).to(x.dtype).flatten(0, 1)
        parts.append((dx, dw.sum(0).flatten(), db.sum(0).flatten()))
        start += num_ghosts
    kind = mean.dtype if weight is None else weight.dtype
    dx, dw, db = parts[0]
    for more in parts[1:]:
        dx, dw, db = torch.cat([dx, more[0]]), dw + more[1], db + more[2]
    return dx, dw.to(kind), db.to(kind)


def _equal_parts(x: Tensor, sizes: Sequence[int]) -> list[tuple[Tensor, int]]:
    """Split `x` into the ghosts of equal size and, if there is one, the last ghost of another size."""
    if sizes[-1] == sizes[0]:
        return [(x, len(sizes))]
    last = sizes[-1]
    return [(x[:-last], len(sizes) - 1), (x[-last:], 1)]


def _per_channel(values: Tensor, ghosts: Tensor) -> Tensor:
    """Reshape [C] or [G, C] so that it broadcasts against [G, b, C, ...]."""
    rest = [1] * (ghosts.dim() - 3)
    if values.dim() == 1:
        return values.view(1, 1, -1, *rest)
    return values.view(values.shape[0], 1, values.shape[1], *rest)
