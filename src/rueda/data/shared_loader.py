"""A torch ``DataLoader`` whose every batch is shared out among the workers, as it would be on one worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import torch
from torch.utils.data import DataLoader, IterableDataset

from rueda.world import current

_OPTIONS = (
    "num_workers", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "generator",
    "prefetch_factor", "persistent_workers",
)  # fmt: skip
_Value = TypeVar("_Value", torch.Tensor, float, int)


class SharedLoader(DataLoader[Any]):
    """Gives each worker its share of every batch that a serial script's DataLoader yields.

    Rank 0 draws the batches of an epoch and sends them to the others, so that any sampler may have chosen them and the
    order is that of the script on one worker. A worker takes one example in N. A data set that is iterated over is read
    by every worker, which collates its share alone; it must yield the same examples on all of them.

    **The weight.** A worker with n of the batch's B examples has the gradient g of the mean over its share. The
    gradient of the mean over the batch is the sum of n/B g over the workers: the average over N workers of (n N / B) g.
    So ``(loss * SharedLoader.weight).backward()``, whose gradients are averaged, is exact for every batch size, and for
    the last batch of an epoch. If the shares are equal, the weight is 1. A worker without an example of a small batch
    computes on one with the weight 0.

    Args:
        whole: the DataLoader; it stays as it is, for evaluations of all data.

    >>> loader = SharedLoader(DataLoader([1.0, 2.0, 3.0], batch_size=2))
    >>> [(batch.tolist(), SharedLoader.weight) for batch in loader]
    [([1.0, 2.0], 1.0), ([3.0], 1.0)]
    """

    weight: float = 1.0
    """weight of the share that was read last in this process"""

    def __init__(self, whole: DataLoader[Any]) -> None:
        self.whole = whole
        options = {name: getattr(whole, name) for name in _OPTIONS}
        collate = cast("Callable[[list[Any]], Any]", whole.collate_fn)
        if isinstance(whole.dataset, IterableDataset):
            collate = _CollateShare(collate, current().rank, current().size)
            options |= {"batch_size": whole.batch_size, "drop_last": whole.drop_last}
        else:
            options["batch_sampler"] = _Shares(whole.batch_sampler)
        super().__init__(whole.dataset, collate_fn=collate, **options)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        for number, batch in enumerate(super().__iter__()):
            if isinstance(self.batch_sampler, _Shares):
                SharedLoader.weight = self.batch_sampler.weights[number]
                yield batch
            else:
                SharedLoader.weight, share = batch
                yield share

    @staticmethod
    def sum(value: _Value) -> _Value:
        """Return the sum over the shares of all workers, of a number or a tensor: a count of examples, for instance."""
        kind = torch.float64 if isinstance(value, float) else None
        part = torch.as_tensor(value, dtype=kind).detach() * (SharedLoader.weight > 0)  # a worker may have no share
        total = current().all_reduce(part, "sum")
        return total if isinstance(value, torch.Tensor) else cast("_Value", total.item())

    @staticmethod
    def mean(value: _Value) -> _Value:
        """Return the mean over the batch, given the mean over this worker's share of it: its loss, for instance."""
        return SharedLoader.sum(value * SharedLoader.weight) / current().size  # type: ignore[return-value]


class _Shares:
    """A batch sampler: this worker's share of every batch, which rank 0 draws for all workers."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches
        self.weights: list[float] = []

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[list[Any]]:
        world = current()
        drawn: Any = world.broadcast_object(list(self._batches) if world.is_main else None)
        parts = [batch[world.rank :: world.size] for batch in drawn]
        self.weights = [len(part) * world.size / len(batch) for part, batch in zip(parts, drawn, strict=True)]
        yield from (part or batch[:1] for part, batch in zip(parts, drawn, strict=True))


class _CollateShare:
    """Collates a worker's share of the examples of a batch; returns its weight, too."""

    def __init__(self, collate: Callable[[list[Any]], Any], rank: int, size: int) -> None:
        self._collate, self._rank, self._size = collate, rank, size

    def __call__(self, examples: list[Any]) -> tuple[float, Any]:
        share = examples[self._rank :: self._size]
        return len(share) * self._size / len(examples), self._collate(share or examples[:1])
