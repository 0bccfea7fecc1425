"""The exchange of the gradients of a DistributedDataParallel model, as its communication hook.

A hook averages one bucket at a time, in the order in which the backward pass fills them. In shared memory a bucket is
begun at once, as far as its slot has room, and all of them are finished with the last one: until then the backward pass
goes on, even if another rank is late. Large buckets lie in memory that all ranks have mapped, and are averaged where
they are (:mod:`rueda.world.shared_memory.mapped_buckets`).

Within torch's ``model.join()``, a rank that has no more batches takes part with buckets of zeros, which are allocated
anew each time. They cannot be mapped, and the others do not know which rank it is, so all buckets go through the slots.

A model has one hook. So that a program can still register its own (a meter of gradient norms, a compression), this one
is registered in the first forward pass, and only if there is no other by then.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from rueda.world.shared_memory.group import SharedGroup
from rueda.world.shared_memory.mapped_buckets import MappedBuckets
from rueda.world.shared_memory.reducing_group import Begun, ReducingGroup
from rueda.world.shared_memory.world_group import world_group

_pending: list[tuple[Begun, Tensor, torch.futures.Future[Tensor]]] = []
_group: ReducingGroup | None = None
"""the group of these buckets; those that a group left behind, because it failed in a backward pass, are dropped"""


class BucketAverage:
    """Averages the buckets of a model over all workers: in shared memory where they have it, otherwise as torch does.

    Args:
        model: the model.
        process_group: its process group; None for that of all workers.
    """

    def __init__(self, model: DistributedDataParallel, process_group: Any = None) -> None:
        self._model = weakref.ref(model)  # which keeps its hook
        self._process_group = process_group
        self._mapped: MappedBuckets | None = None
        self._shared: SharedGroup | None = None  # whose ranks have mapped the buckets

    def begin(self, bucket: Any) -> torch.futures.Future[Tensor]:
        """Begin to average a bucket, a ``torch.distributed.GradBucket``; the last one finishes all."""
        shared, buffer = world_group(), bucket.buffer()
        if shared is None or not _is_world(self._process_group) or not shared.can_reduce(buffer, "sum"):
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

            return allreduce_hook(self._process_group, bucket)
        index = bucket.index()
        model = self._model()
        if model is not None and model._join_config.enable:
            reduction = shared.begin_all_reduce(buffer, divisor=_joined_divisor(shared, model))
        elif isinstance(shared, SharedGroup) and (mapped := self._mapped_by_all(shared, index, buffer)) is not None:
            reduction = shared.begin_all_reduce_in_place(mapped, divisor=shared.size)
        else:
            reduction = shared.begin_all_reduce(buffer, divisor=shared.size)
        return _finish_with_the_last(shared, reduction, buffer, last=bucket.is_last())

    def _mapped_by_all(self, shared: SharedGroup, index: int, buffer: Tensor) -> list[Tensor] | None:
        """Return the buckets of all ranks, which are on one host, if they have mapped them."""
        if self._mapped is None or self._shared is not shared:
            self._mapped, self._shared = MappedBuckets(shared), shared
        return self._mapped.of(index, buffer)


def _joined_divisor(shared: ReducingGroup, model: DistributedDataParallel) -> float:
    """Return the number of ranks, or, if ``model.join()`` was told so, of those that still have batches."""
    if getattr(model, "_divide_by_initial_world_size", True):
        return shared.size
    has_batch = torch._C._current_graph_task_id() >= 0  # this hook is called by a backward pass
    number = torch.tensor([float(has_batch)])
    shared.all_reduce(number)
    return number.item()


def _finish_with_the_last(
    shared: ReducingGroup, reduction: Begun, buffer: Tensor, *, last: bool
) -> torch.futures.Future[Tensor]:
    global _group
    if _group is not shared:
        _pending.clear()
        _group = shared
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    _pending.append((reduction, buffer, future))
    if last:
        begun = list(_pending)
        _pending.clear()
        for reduction, reduced, done in begun:
            reduction.wait()
            done.set_result(reduced)
    return future


def exchange_in_shared_memory(model: DistributedDataParallel) -> None:
    """Let a model average its gradients in shared memory, unless a hook is registered before its first forward pass."""
    if world_group() is not None and _is_world(model.process_group):
        model.register_forward_pre_hook(_register)


def _register(model: Any, inputs: Any) -> None:
    if not model._comm_hooks:
        model.register_comm_hook(BucketAverage(model), _hook)


def _hook(state, bucket):  # type: ignore[no-untyped-def]  # DDP reads annotations, and wants types instead of strings
    return state.begin(bucket)


def _is_world(process_group: Any) -> bool:
    return process_group is None or process_group is dist.group.WORLD
