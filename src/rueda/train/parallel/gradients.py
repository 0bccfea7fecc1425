"""Gradients of a divided model: averaged over the replicas of each part, and their norm over all parts.

A parameter may be a ``DTensor``. All that is elementwise works on this worker's parts of the gradients; a norm sums up
the squares of the parts, which have no padding, over the workers that divide a tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rueda.optim.engine.lanes import local, shards_of
from rueda.optim.engine.norms import norms
from rueda.world.device import widest_dtype


def settle(parameters: Sequence[nn.Parameter]) -> None:
    """Divide each gradient as its parameter: a backward pass may leave a sum that is not finished."""
    for parameter in parameters:
        placements, gradient = getattr(parameter, "placements", None), parameter.grad
        if isinstance(gradient, DTensor) and gradient.placements != placements:
            parameter.grad = gradient.redistribute(placements=placements)


def average(parameters: Sequence[nn.Parameter], group: dist.ProcessGroup) -> None:
    """Average gradients over the workers that have the same parts, in one all-reduce for each dtype.

    The same parameters must have a gradient on all of these workers.
    """
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            by_dtype.setdefault(parameter.grad.dtype, []).append(local(parameter.grad))
    for gradients in by_dtype.values():
        flat = torch.cat([one.reshape(-1) for one in gradients])
        dist.all_reduce(flat, group=group)
        flat /= dist.get_world_size(group)
        pieces = torch.split(flat, [one.numel() for one in gradients])
        torch._foreach_copy_(gradients, [piece.view_as(one) for piece, one in zip(pieces, gradients, strict=True)])


def norm_of(
    parameters: Sequence[nn.Parameter], device: torch.device, over: Sequence[dist.ProcessGroup | None] = ()
) -> Tensor:
    """Return the norm of the gradients of the whole model, the same on all workers, which must all call it.

    Args:
        parameters: those of this worker that count; of a parameter that several workers have whole, each counts its
            own, unless they are among ``over``.
        device: that of this worker.
        over: groups of workers that have other parameters, such as the stages of a pipeline.
    """
    wide = widest_dtype(device)
    total = torch.zeros((), dtype=wide, device=device)
    of_shards: dict[tuple[dist.ProcessGroup, ...], list[Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            of_shards.setdefault(shards_of(parameter), []).append(local(parameter.grad))
    squares = {shards: norms(gradients)[0].square().sum().to(wide) for shards, gradients in of_shards.items()}
    for group in dict.fromkeys(group for shards in squares for group in shards):  # in one order on all workers
        divided = [shards for shards in squares if group in shards]
        sums = torch.stack([squares[shards] for shards in divided])
        dist.all_reduce(sums, group=group)
        squares |= zip(divided, sums.unbind(), strict=True)
    for one in squares.values():
        total += one
    for others in over:
        dist.all_reduce(total, group=others)
    return total.sqrt()


def clip_by_norm(parameters: Sequence[nn.Parameter], limit: float, norm: Tensor) -> None:
    """Scale gradients in place, so that a norm above the limit becomes the limit, as ``clip_grad_norm_`` does."""
    gradients = [local(one.grad) for one in parameters if one.grad is not None]
    if gradients:
        factor = torch.clamp(limit / (norm + 1e-6), max=1.0)
        torch._foreach_mul_(gradients, factor.to(gradients[0].dtype))
