"""Synchronise the buffers of a model on several workers: batch-norm running statistics and any others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from rueda.world import World


def synchronize_buffers(model: nn.Module, world: World) -> None:
    """Make all buffers equal on all workers: average running statistics, broadcast all others from rank 0.

    During training each worker normalises by its own batch and keeps its own running averages, so no step needs a
    collective for them. A running average is linear in the batch statistics: its mean over N workers is the running
    average of the workers' mean statistics, estimated from N times as many examples as rank 0 alone has seen. For
    other buffers no meaningful average is known, so rank 0's values are used. Every worker must call this function.
    """
    if world.size == 1:
        return
    statistics = running_statistics(model)
    if statistics is not None:
        write_running_statistics(model, world.all_reduce(statistics, "mean"))
    others = list(other_buffers(model).values())
    if others:
        # Sent as bytes: not every backend supports every dtype, and one broadcast is then enough for all buffers.
        raw = [buffer.detach().reshape(-1).contiguous().view(torch.uint8) for buffer in others]
        parts = torch.split(world.broadcast(torch.cat(raw)), [one.numel() for one in raw])
        for buffer, part in zip(others, parts, strict=True):
            buffer.copy_(part.clone().view(buffer.dtype).view(buffer.shape))


def running_statistics(model: nn.Module) -> Tensor | None:
    """Return all running means and variances of the normalisation layers as one vector; None if there are none."""
    tracked = _tracked(model)
    return torch.cat([buffer.flatten() for buffer in tracked]) if tracked else None


def write_running_statistics(model: nn.Module, statistics: Tensor) -> None:
    """Write a vector of :func:`running_statistics` back into the layers."""
    tracked = _tracked(model)
    parts = torch.split(statistics, [buffer.numel() for buffer in tracked])
    write_buffers(tracked, [part.view_as(buffer) for part, buffer in zip(parts, tracked, strict=True)])


def _tracked(model: nn.Module) -> list[Tensor]:
    layers = [module for module in model.modules() if isinstance(module, _NormBase)]
    found = [buffer for layer in layers for buffer in (layer.running_mean, layer.running_var) if buffer is not None]
    return [buffer for buffer in found if not buffer.is_meta]  # those belong to another worker's stage of a pipeline


def other_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that do not belong to a normalisation layer with running statistics."""
    norms = {id(buffer) for m in model.modules() if isinstance(m, _NormBase) for buffer in m.buffers(recurse=False)}
    return {name: buffer for name, buffer in model.named_buffers() if id(buffer) not in norms}


@contextmanager
def buffers_restored(buffers: Iterable[Tensor]) -> Iterator[None]:
    """Restore the contents of buffers at the end of the block."""
    buffers = list(buffers)
    kept = [buffer.clone() for buffer in buffers]
    try:
        yield
    finally:
        write_buffers(buffers, kept)


def write_buffers(buffers: Iterable[Tensor], values: Iterable[Tensor]) -> None:
    """Copy values into buffers."""
    with torch.no_grad():
        for buffer, value in zip(buffers, values, strict=True):
            buffer.copy_(value)
