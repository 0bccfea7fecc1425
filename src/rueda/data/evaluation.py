"""Batches for evaluation, in which every example counts exactly once on any number of workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from rueda.data.arrays import Arrays
from rueda.data.batcher import Batcher
from rueda.data.dataset_loader import BatchReader, Requests, read_examples, unchanged
from rueda.data.iterable_loader import own_stream
from rueda.data.loader import is_stream
from rueda.data.partition import check_examples, check_worker, evaluation_share
from rueda.data.stream import Ranked, batch_device, current_world
from rueda.data.stream_reader import Plan, StreamReader
from rueda.data.transfer import Transfer
from rueda.errors import DataError


class EvalLoader:
    """Iterates over this worker's batches, each followed by its weights, in the order of the data.

    ``weights`` is 1 for an example and 0 for padding, which fills the last batch so that it has the same size on all
    workers. Weighted sums, added over the workers, equal those of a single worker. All workers have the same number of
    batches. Of :class:`rueda.Arrays`, and of other data whose batches are tuples or lists such as ``(inputs,
    targets)``, it yields ``(inputs, targets, weights)``; of other data, ``(batch, weights)``.

    A stream is read by every worker, which keeps its own examples, so that it ends at the same place on all of them.

    Args:
        data: the examples: :class:`rueda.Arrays`, a data set with an index, a stream, or a torch DataLoader, of which
            the data set and ``collate_fn`` are used.
        batch: number of examples per batch of this worker; it may exceed the size of the data.
        world: gives the rank and the number of workers; by default the current world.
        dtype: of arrays: dtype of the inputs.
        device: device of the batches, see :class:`Loader`.
        collate_fn: of other data: makes a batch from a list of examples; by default torch's ``default_collate``.
        num_workers: of a data set with an index: number of processes that read batches in advance.
        padded: of other data than arrays: whether a last batch that is shorter on some workers is filled there. If not,
            only a worker that has no example left gets one with weight 0.

    >>> data = Arrays(torch.zeros(5, 1), torch.arange(5))
    >>> [(targets.tolist(), weights.tolist()) for inputs, targets, weights in EvalLoader(data, batch=3)]
    [([0, 1, 2], [1.0, 1.0, 1.0]), ([3, 4], [1.0, 1.0])]
    >>> list(EvalLoader([{"n": n} for n in range(3)], batch=2))
    [({'n': tensor([0, 1])}, tensor([1., 1.])), ({'n': tensor([2])}, tensor([1.]))]
    """

    def __init__(
        self,
        data: Any,
        batch: int | None = None,
        *,
        world: Ranked | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        padded: bool = True,
    ) -> None:
        world = world or current_world()
        check_worker(world.rank, world.size)
        if isinstance(data, DataLoader):
            if data.batch_size is None:
                do = "pass the data set itself, with a batch and a collate_fn"
                raise DataError("data", expected="a DataLoader with a batch_size", got=None, do=do)
            batch, collate_fn = batch or data.batch_size, collate_fn or data.collate_fn
            num_workers, data = num_workers or data.num_workers, data.dataset
        if batch is None or batch < 1:
            raise DataError("batch", expected="1 or more", got=batch, do="choose a larger batch")
        self.data, self.batch, self.rank, self.size = data, batch, world.rank, world.size
        self._is_stream = is_stream(data)
        is_arrays = isinstance(data, Arrays)
        if not self._is_stream:
            if not is_arrays and not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
                expected, do = "rueda.Arrays, a data set or a stream", "wrap it in one of them"
                raise DataError("data", expected=expected, got=type(data).__name__, do=do)
            check_examples(len(data))
        self._collate, self._num_workers, self._padded = collate_fn or default_collate, num_workers, padded
        self.device = batch_device(world, device)
        self._batcher = Batcher(data, dtype=dtype, device=self.device) if is_arrays else None
        self._transfer = None if self.device is None or self.device.type == "cpu" else Transfer(self.device)
        self._start: Any = None
        if self._is_stream:
            self.data, self._start = own_stream(data)

    def __len__(self) -> int:
        """Return the number of batches, the same on every worker."""
        return -(-len(self.data) // (self.batch * self.size))

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for batch, weights in self.batches():
            yield (*batch, weights) if type(batch) in (tuple, list) else (batch, weights)

    def batches(self) -> Iterator[tuple[Any, Tensor]]:
        """Iterate over pairs of a batch, of any structure, and the weights of its examples."""
        if self._is_stream:
            found = self._of_stream()
        elif self._batcher is not None:
            found = self._of_arrays(self._batcher)
        else:
            found = self._of_dataset()
        for batch, weights in found:
            if self._transfer is not None and self._batcher is None:
                batch = self._transfer.batch(batch)
            where = self.device if self._batcher is None else self._batcher.device
            yield batch, weights if where is None else weights.to(where, non_blocking=True)

    def _of_arrays(self, batcher: Batcher) -> Iterator[tuple[Any, Tensor]]:
        for indices, weights in self._shares():
            yield batcher.finish(*batcher.gather(indices)), weights

    def _of_dataset(self) -> Iterator[tuple[Any, Tensor]]:
        if self._num_workers == 0:
            for indices, weights in self._shares():
                yield self._collate(read_examples(self.data, indices.tolist())), weights
            return
        requests = (([[indices.tolist()]], 0) for indices, _ in self._shares())
        reader = BatchReader(self.data, self._collate, None)
        read = DataLoader(
            reader, sampler=Requests(requests), batch_size=None, collate_fn=unchanged, num_workers=self._num_workers
        )
        for (_, weights), [[batch]] in zip(self._shares(), read, strict=True):
            yield batch, weights

    def _shares(self) -> Iterator[tuple[Any, Tensor]]:
        num = len(self.data)
        for position in range(0, num, self.batch * self.size):
            indices, weights = evaluation_share(num, position, self.batch, self.rank, self.size)
            kept = len(weights) if self._padded or self._batcher is not None else max(1, int(weights.sum()))
            yield indices[:kept], torch.from_numpy(weights[:kept])

    def _of_stream(self) -> Iterator[tuple[Any, Tensor]]:
        is_pipeline = type(self.data).__module__.startswith("webdataset")
        plan = Plan(
            dataset=self.data, epoch=0, seed=0, shuffle=0, remainder="short", divide="examples", rank=self.rank,
            size=self.size, start=self._start, hides_rank=is_pipeline,
        )  # fmt: skip
        reader, is_empty = StreamReader(plan), True
        while (read := reader.read(self.batch)) is not None:
            is_empty = False
            weights = torch.ones(len(read.examples))
            weights[len(weights) - read.num_repeated :] = 0
            kept = len(weights) if self._padded else max(1, len(weights) - read.num_repeated)
            yield self._collate(read.examples[:kept]), weights[:kept]
        if is_empty:  # on all workers alike; a loss over nothing would be 0, and the best there is
            do = "let __iter__ begin anew at every call, and check how the stream is read"
            raise DataError("data", expected="a stream of at least 1 example", got="an empty one", do=do)
