"""Reading one epoch of a stream, for one worker and one loader process.

There are three ways to divide a stream among N workers of W loader processes each:

- ``examples``: every loader reads the same stream and keeps its own examples. Of the global batch
  ``stream[p : p + B]``, worker r takes ``stream[p + r : p + B : N]``, as of any other data
  (:mod:`rueda.data.partition`), and its processes take its batches in turn. One worker and N workers see the same
  global batches, and all of them see the end at the same place. It costs reading: what the stream itself decodes is
  decoded on every loader.
- ``shards``: the data set divides itself: it is told that it is read by loader ``r W + w`` of ``N W``
  (:mod:`rueda.data.loader_info`) and yields that loader's share. Each example is read once, and the batches depend on
  the number of loaders.
- ``ranks``: the data set has divided itself among the ranks already; it is told of the W processes of its worker.

Each loader keeps its share in a shuffle buffer (:mod:`rueda.data.shuffle_buffer`), with ``examples`` the whole stream.
What the data set draws at random comes from generators that are seeded for the epoch (:mod:`rueda.data.own_random`), so
that reading again up to some place gives the same examples.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

from torch.utils.data import IterableDataset, get_worker_info

from rueda.data.counter import key_of
from rueda.data.loader_info import Told
from rueda.data.own_random import OwnRandom
from rueda.data.shuffle_buffer import ShuffleBuffer, contents_at
from rueda.world.seeds import derive

DIVISIONS = ("examples", "shards", "ranks")
SNAPSHOT_EVERY = 256
"""examples between two saved states of a data set that has states"""
_SHUFFLE = 4  # a stream of random numbers apart from those of rueda.data.partition


class Snapshot(NamedTuple):
    """Where a data set that has states can continue: its state after ``num_read`` examples."""

    num_read: int
    state: Any
    ended_at: int | None
    """the length of the stream, if its end was seen"""


class Read(NamedTuple):
    """The examples of one worker's batch."""

    examples: list[Any]
    place: tuple[int, ...]
    """identifies the batch within the epoch, for random numbers"""
    process: int
    snapshot: Snapshot | None
    num_repeated: int = 0
    """examples at the end that only make a short batch as long as that of the other workers"""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Which part of an epoch a loader reads."""

    dataset: Any
    epoch: int
    seed: int
    shuffle: int
    """size of the shuffle buffer"""
    remainder: str
    divide: str
    rank: int
    size: int
    process: int = 0
    num_processes: int = 1
    position: int = 0
    """examples of the whole stream that were taken before, if the stream is divided by examples"""
    skip: int = 0
    """examples of this loader's share that were taken before, if it is divided otherwise"""
    snapshot: Snapshot | None = None
    """where to continue instead of reading from the start"""
    start: Any = None
    """the state of a data set at the start of an epoch; None if it has no states"""
    hides_rank: bool = False


class StreamReader:
    """Reads the batches of a plan, one after another."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        divides_itself = plan.divide != "examples"
        self._number = plan.process + (plan.rank * plan.num_processes if plan.divide == "shards" else 0)
        total = plan.num_processes * (plan.size if plan.divide == "shards" else 1) if divides_itself else 1
        share = (plan.rank, plan.process) if divides_itself else ()
        self._seeds: tuple[int | str, ...] = ("stream", plan.seed, plan.epoch, *share)
        self._told = Told(self._number, total, seed=derive(*self._seeds), hides_rank=plan.hides_rank)
        self._random = OwnRandom(*self._seeds)
        self._key = key_of(_SHUFFLE, plan.seed, plan.epoch, *share)
        self._snapshots: deque[tuple[int, Any]] = deque()
        self._stream: ShuffleBuffer | None = None
        self._num_read = 0  # batches that this reader has returned
        self._taken = plan.skip  # examples of its own share

    def read(self, local_batch: int) -> Read | None:
        """Return the examples of this loader's next batch; None at the end of the epoch."""
        with self._told, self._random:
            if self._stream is None:
                self._stream = self._opened()
            if self._plan.divide == "examples":
                return self._of_global_batch(self._stream, local_batch)
            return self._of_own_share(self._stream, local_batch)

    def _of_global_batch(self, stream: ShuffleBuffer, local_batch: int) -> Read | None:
        plan = self._plan
        rank, size, global_batch = plan.rank, plan.size, local_batch * plan.size
        number = self._num_read * plan.num_processes + plan.process
        others = plan.process if self._num_read == 0 else plan.num_processes - 1
        _drop(stream, others * global_batch)
        mine, first, found, num_repeated = [], list[Any](), 0, 0
        for _ in range(local_batch):
            of_all = list(islice(stream, size))  # one example of each worker
            first = first or of_all
            found += len(of_all)
            mine += of_all[rank : rank + 1]
            if len(of_all) < size:
                break
        if found < global_batch:
            if found == 0 or plan.remainder == "drop":
                return None
            if plan.remainder == "pad":
                start = self._again()
                mine += [example for i in range(found, global_batch) for example in [next(start)] if i % size == rank]
            elif len(mine) < -(-found // size):
                mine.append(first[(rank + size * len(mine)) % found])
                num_repeated = 1
        self._num_read += 1
        place = plan.position + number * global_batch, rank
        return Read(mine, place, plan.process, self._snapshot(stream), num_repeated)

    def _of_own_share(self, stream: ShuffleBuffer, local_batch: int) -> Read | None:
        plan = self._plan
        place = self._taken, plan.rank, plan.process
        mine = list(islice(stream, local_batch))
        self._taken += len(mine)
        if len(mine) < local_batch:
            if not mine or plan.remainder == "drop":
                return None
            if plan.remainder == "pad":
                mine += islice(self._again(), local_batch - len(mine))
        return Read(mine, place, plan.process, None)

    def _again(self) -> Iterator[Any]:
        """Iterate over the epoch from its start, again and again."""
        while True:
            from_start = replace(self._plan, position=0, skip=0, snapshot=None)
            yield from StreamReader(from_start)._opened()

    # The shuffled stream from the plan's place on.

    def _opened(self) -> ShuffleBuffer:
        plan, snapshot = self._plan, self._plan.snapshot
        if snapshot is None:
            stream = ShuffleBuffer(self._source(0, plan.start), plan.shuffle, self._key)
            _drop(stream, plan.position if plan.divide == "examples" else plan.skip)
            return stream
        numbers, num_read = contents_at(plan.position, plan.shuffle, self._key, snapshot.ended_at)
        source, wanted = self._source(snapshot.num_read, snapshot.state), set(numbers)
        held: dict[int, Any] = {}
        for number in range(snapshot.num_read, num_read):
            example = next(source)
            if number in wanted:
                held[number] = example
        contents = [(number, held[number]) for number in numbers]
        return ShuffleBuffer(
            source, plan.shuffle, self._key, contents=contents, num_drawn=plan.position, num_read=num_read
        )

    def _source(self, num_read: int, state: Any) -> Iterator[Any]:
        """Iterate over the data set, from a state on if it has states."""
        dataset, has_states = self._plan.dataset, state is not None
        if hasattr(dataset, "set_epoch"):
            dataset.set_epoch(self._plan.epoch)
        if has_states:
            dataset.load_state_dict(state)
            self._snapshots.append((num_read, state))
            self._random.seed(*self._seeds, num_read)
        for example in dataset:
            num_read += 1
            yield example
            if has_states and num_read % SNAPSHOT_EVERY == 0:
                self._snapshots.append((num_read, dataset.state_dict()))
                self._random.seed(*self._seeds, num_read)  # so that it draws the same from here on, if resumed here

    def _snapshot(self, stream: ShuffleBuffer) -> Snapshot | None:
        """Return the last state from which all examples can be read that are still needed."""
        if not self._snapshots:
            return None
        if len(self._snapshots) > 1:
            oldest = stream.oldest()
            while len(self._snapshots) > 1 and self._snapshots[1][0] <= oldest:
                self._snapshots.popleft()
        return Snapshot(*self._snapshots[0], stream.ended_at)


class LoaderProcess(IterableDataset[Any]):
    """Reads and collates batches in a process of torch's DataLoader.

    Args:
        plan: which part of the epoch this worker reads.
        local_batch: examples of a batch.
        collate: makes micro-batches of the examples.
        taken: the examples that each process of this worker took before.
        first: the process whose turn it is.
    """

    def __init__(self, plan: Plan, local_batch: int, collate: Collating, taken: list[int], first: int) -> None:
        self._plan, self._local_batch, self._collate = plan, local_batch, collate
        self._taken, self._first = taken, first

    def __iter__(self) -> Iterator[tuple[Read, list[list[Any]], int]]:
        info = get_worker_info()
        number = (self._first + (0 if info is None else info.id)) % len(self._taken)
        reader = StreamReader(replace(self._plan, process=number, skip=self._taken[number]))
        while (read := reader.read(self._local_batch)) is not None:
            yield read._replace(examples=[]), self._collate(read), len(read.examples)


@dataclass(frozen=True)
class Collating:
    """Makes micro-batches of what was read, each with random numbers of its own."""

    function: Callable[[list[Any]], Any]
    seed: int
    epoch: int
    micro_batch: int | None
    num_virtual_workers: int

    def __call__(self, read: Read) -> list[list[Any]]:
        """Return the micro-batches of each virtual worker."""
        num = self.num_virtual_workers
        parts = []
        for virtual_rank in range(num):
            share, (place, rank, *process) = read.examples[virtual_rank::num], read.place
            step = self.micro_batch or max(1, len(share))
            with OwnRandom("collate", self.seed, self.epoch, place, rank + virtual_rank, *process):
                parts.append([self.function(share[start : start + step]) for start in range(0, len(share), step)])
        return parts


def _drop(stream: Iterator[Any], num: int) -> None:
    next(islice(stream, num, num), None)
