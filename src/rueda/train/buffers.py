"""The buffers of a model on several workers: running statistics of batch norm, and whatever else a model keeps."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from rueda.world import World


def synchronize_buffers(model: nn.Module, world: World) -> None:
    """Make the buffers equal on all workers: the mean of the running statistics, and rank 0's of all other buffers.

    While it trains, each worker normalises by its own batch and keeps its own running averages, so nothing is sent at
    each step. The averages are linear in what they have seen: the mean over the workers is the running average of
    the mean statistics, N times better than rank 0's alone. No rule says how to average other buffers; there rank 0's
    count. Every worker must call it.
    """
    if world.size == 1:
        return
    tracked = [
        buffer
        for module in model.modules()
        if isinstance(module, _NormBase)
        for buffer in (module.running_mean, module.running_var)
        if buffer is not None
    ]
    if tracked:
        flat = world.all_reduce(torch.cat([buffer.flatten() for buffer in tracked]), "mean")
        for buffer, mean in zip(tracked, torch.split(flat, [buffer.numel() for buffer in tracked]), strict=True):
            buffer.copy_(mean.view_as(buffer))
    others = list(other_buffers(model).values())
    if others:
        # As bytes: not every backend sends every type, and one message does for all.
        raw = [buffer.detach().reshape(-1).contiguous().view(torch.uint8) for buffer in others]
        parts = torch.split(world.broadcast(torch.cat(raw)), [one.numel() for one in raw])
        for buffer, part in zip(others, parts, strict=True):
            buffer.copy_(part.clone().view(buffer.dtype).view(buffer.shape))


def other_buffers(model: nn.Module) -> dict[str, Tensor]:
    """List the buffers that are not those of a normalisation with running statistics."""
    norms = {id(buffer) for m in model.modules() if isinstance(m, _NormBase) for buffer in m.buffers(recurse=False)}
    return {name: buffer for name, buffer in model.named_buffers() if id(buffer) not in norms}
