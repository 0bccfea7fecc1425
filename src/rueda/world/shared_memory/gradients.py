"""The exchange of the gradients of a DistributedDataParallel model, as its communication hook.

A hook averages one bucket at a time, in the order in which the backward pass fills them. In shared memory a bucket is
begun at once, as far as its slot has room, and all of them are finished with the last one: until then the backward pass
goes on, even if another rank is late.

A model has one hook. So that a program can still register its own (a meter of gradient norms, a compression), this one
is registered in the first forward pass, and only if there is no other by then.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from rueda.world.shared_memory.group import Finish, SharedGroup
from rueda.world.shared_memory.world_group import world_group

_pending: list[tuple[Finish, Tensor, torch.futures.Future[Tensor]]] = []
_group: SharedGroup | None = None
"""the group of these buckets; those that a group left behind, because it failed in a backward pass, are dropped"""


def average_bucket(process_group: Any, bucket: Any) -> torch.futures.Future[Tensor]:
    """Average a bucket over all workers, in shared memory where they have it, otherwise as torch does.

    Args:
        process_group: the process group of the model; None for that of all workers.
        bucket: the bucket, a ``torch.distributed.GradBucket``.
    """
    shared, buffer = world_group(), bucket.buffer()
    if shared is None or not _is_world(process_group) or not shared.can_reduce(buffer, "sum"):
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        return allreduce_hook(process_group, bucket)
    return _begin(shared, buffer, last=bucket.is_last())


def _begin(shared: SharedGroup, buffer: Tensor, *, last: bool) -> torch.futures.Future[Tensor]:
    global _group
    if _group is not shared:
        _pending.clear()
        _group = shared
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    _pending.append((shared.begin_all_reduce(buffer, divisor=shared.size), buffer, future))
    if last:
        begun = list(_pending)
        _pending.clear()
        for finish, reduced, done in begun:
            finish()
            done.set_result(reduced)
    return future


def exchange_in_shared_memory(model: DistributedDataParallel) -> None:
    """Let a model average its gradients in shared memory, unless a hook is registered before its first forward pass."""
    if world_group() is not None and _is_world(model.process_group):
        model.register_forward_pre_hook(_register)


def _register(model: Any, inputs: Any) -> None:
    if not model._comm_hooks:
        model.register_comm_hook(None, _hook)


def _hook(state, bucket):  # type: ignore[no-untyped-def]  # DDP reads annotations, and wants types instead of strings
    return average_bucket(state, bucket)


def _is_world(process_group: Any) -> bool:
    return process_group is None or process_group is dist.group.WORLD
