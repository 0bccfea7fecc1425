"""Gather tensors of all workers with the right gradient, for losses that compare the examples of all workers.

A contrastive loss needs the features of the whole global batch. Each worker computes those of its own examples and
gathers the others'. A feature then influences the losses of *all* workers, so its gradient is the sum of what all
workers' losses contribute: the backward pass of an all-gather is a reduce-scatter. (A gather that drops the gradient,
as ``torch.distributed.all_gather`` does, trains each worker's features against constants: another, weaker loss.)

::

    def step(model, batch):
        first, second = model(batch["first"]), model(batch["second"])       # [B, D] each
        similarity = first @ rueda.gather(second).T / 0.1                   # [B, B of all workers]
        own = torch.arange(len(first), device=first.device)                 # this worker's rows come first
        return F.cross_entropy(similarity, own, reduction="none")           # [B]
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from rueda.errors import WorldError
from rueda.world.shared_memory.world_group import copying_group

if TYPE_CHECKING:
    from rueda.world.world import World

_replacement: Callable[[Tensor], Tensor] | None = None


def gather(tensor: Tensor) -> Tensor:
    """Return the rows of all workers' tensors, with their gradient: this worker's first, then those of the next ranks.

    Every worker must call it; the tensors may differ in their number of rows, as those of an epoch's last batch do, and
    in nothing else. Since its own rows come first, on any number of workers row i of the result is row i of the
    argument. A worker alone gets its tensor back; in a rehearsal each virtual worker gets the rows of all. In an
    evaluation every worker compares its own examples only.

    >>> gather(torch.tensor([[1.0], [2.0]])).tolist()
    [[1.0], [2.0]]
    """
    if tensor.dim() == 0:
        raise WorldError("gather", expected="a tensor with rows", got="a scalar", do="add a dimension: tensor[None]")
    if _replacement is not None:
        return _replacement(tensor)
    from rueda.world.life import current

    world = current()
    if world.size == 1 or torch.is_inference_mode_enabled():
        return tensor
    rows = _rows_of_all(world, tensor)
    missing = max(rows) - len(tensor)
    padded = tensor if missing == 0 else torch.cat([tensor, tensor.new_zeros(missing, *tensor.shape[1:])])
    parts = world.all_gather(padded)
    return own_first([part[:count] for part, count in zip(parts, rows, strict=True)], world.rank)


def _rows_of_all(world: World, tensor: Tensor) -> list[int]:
    """Return the number of rows on each rank; refuse tensors that differ in another dimension or in their data type."""
    trailing = f"{tensor.dtype} rows of shape {tuple(tensor.shape[1:])}"
    own = torch.tensor([len(tensor), zlib.crc32(trailing.encode())], device=tensor.device)
    counts, checksums = zip(*(part.tolist() for part in world.all_gather(own)), strict=True)
    if len(set(checksums)) > 1:
        of_all = world.all_gather_object(trailing)
        do = "gather tensors that differ in their number of rows only"
        raise WorldError(
            "gather",
            expected=f"{of_all[0]} on every worker, as on rank 0",
            got="; ".join(f"{other} on rank {rank}" for rank, other in enumerate(of_all) if other != of_all[0]),
            do=do,
        )
    return list(counts)


def own_first(parts: list[Tensor], rank: int) -> Tensor:
    """Join the tensors of all ranks along their first dimension, beginning with one rank's own.

    >>> own_first([torch.tensor([0]), torch.tensor([1]), torch.tensor([2])], rank=1)
    tensor([1, 2, 0])
    """
    return torch.cat(parts[rank:] + parts[:rank])


@contextmanager
def gathering_by(function: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Let :func:`gather` call another function inside the block: that of a rehearsal, or of a worker by itself."""
    global _replacement
    before, _replacement = _replacement, function
    try:
        yield
    finally:
        _replacement = before


def gathering_alone() -> AbstractContextManager[None]:
    """Return a context in which :func:`gather` returns the worker's own rows only, as in an evaluation."""
    return gathering_by(lambda tensor: tensor)


class AllGather(torch.autograd.Function):
    """An all-gather whose backward pass sums the gradients of all workers and returns this worker's part."""

    @staticmethod
    def forward(context: Any, tensor: Tensor) -> tuple[Tensor, ...]:
        """Return the tensors of all workers in rank order."""
        parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size())]
        shared = copying_group()
        if shared is not None and tensor.is_cpu:
            shared.all_gather(parts, tensor)
        else:
            dist.all_gather(parts, tensor.contiguous())
        return tuple(parts)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        """Return the sum over all workers of the gradients of this worker's tensor."""
        stacked = torch.stack([gradient.contiguous() for gradient in gradients])
        shared = copying_group()
        if shared is not None and shared.can_reduce(stacked, "sum"):
            own = torch.empty_like(stacked[0])
            shared.reduce_scatter(own, stacked)
            return own
        if dist.get_backend() == "nccl":
            own = torch.empty_like(stacked[0])
            dist.reduce_scatter_tensor(own, stacked)
            return own
        dist.all_reduce(stacked)  # not every backend can reduce-scatter
        return stacked[dist.get_rank()]
