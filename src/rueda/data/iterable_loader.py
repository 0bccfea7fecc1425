"""Batches of a stream: anything that can be iterated over once an epoch, such as a torch ``IterableDataset``."""

from __future__ import annotations

import copy
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any
from weakref import WeakMethod

import torch

from rueda.data import hugging_face, partition
from rueda.data.collated_loader import CollatedLoader
from rueda.data.loader_info import Told
from rueda.data.own_random import OwnRandom
from rueda.data.read_ahead import ReadAhead
from rueda.data.stream import Batch, Ranked, Stream, batch_device, current_world
from rueda.data.stream_reader import DIVISIONS, Collating, LoaderProcess, Plan, Snapshot, StreamReader
from rueda.data.stream_sequence import InProcesses, InThisProcess, Sequence
from rueda.errors import DataError

SHUFFLE = 1024
"""examples in the shuffle buffer, unless another number is given"""


class IterableLoader(CollatedLoader):
    """Divides a stream among all workers and their loader processes; see :class:`rueda.Loader`.

    How it is divided is described in :mod:`rueda.data.stream_reader`. By default, a data set that asks
    ``torch.utils.data.get_worker_info()`` for the number of loaders divides itself (``shards``), and any other is
    divided by ``examples``. A Hugging Face data set or a ``webdataset`` pipeline is divided by its shards if their
    number is a multiple of that of the loaders, and by examples otherwise.

    **The end.** With ``examples``, all workers see the stream end at the same place. Shards may be of different length.
    So each worker reads one batch ahead and tells the others whether it found one, by an all-reduce that runs while the
    training computes (:mod:`rueda.data.agreement`): all workers have the same number of batches, and none waits for
    one that has ended. With ``remainder="drop"`` the epoch ends when the first worker has no full batch left; with
    ``pad`` and ``short`` when the last one has none, and the others begin their shares again meanwhile.

    **Resuming.** With ``examples``, the state is that of other loaders, and may be loaded on any number of workers: the
    stream is read again up to the position, or from the last saved state of a data set that has ``state_dict`` and
    ``load_state_dict``. With ``shards``, the shares are read again, on the same number of loaders.

    Args:
        dataset: the stream; ``dataset.set_epoch(epoch)`` is called before each epoch if it exists.
        batch: the local batch size, that of this worker.
        world: gives the rank and the number of workers; by default the current world.
        seed: seed of the shuffle buffer and of what the data set draws; the same on all workers.
        remainder: ``drop``, ``pad`` or ``short``.
        shuffle: number of examples in the shuffle buffer; 0 keeps the order.
        divide: ``examples``, ``shards`` or ``ranks``; by default what fits the data set.
        num_examples: the length of the stream, if it is known; else it is counted when it is asked for.
        num_workers: number of processes that read batches in advance.
        device: device of the batches; by default that of the world.
        options: ``collate_fn`` and, if ``num_workers > 0``, other arguments of DataLoader.

    >>> from rueda.data.loader import Loader
    >>> class Numbers(torch.utils.data.IterableDataset):
    ...     def __iter__(self):
    ...         return iter(range(7))
    >>> loader = Loader(Numbers(), batch=3, shuffle=4, seed=1)
    >>> [batch.tolist() for batch in loader], [batch.tolist() for batch in loader]
    ([[3, 0, 4], [6, 1, 5]], [[0, 1, 2], [5, 6, 3]])
    """

    def __init__(
        self,
        dataset: Any,
        batch: int,
        *,
        world: Ranked | None = None,
        seed: int = 0,
        partition: str = "shards",
        remainder: str = "drop",
        shuffle: int = SHUFFLE,
        divide: str | None = None,
        num_examples: int | None = None,
        num_workers: int = 0,
        device: torch.device | str | None = None,
        **options: Any,
    ) -> None:
        world = world or current_world()
        self.dataset, self.device, self._world = dataset, batch_device(world, device), world
        _check(dataset, partition, shuffle, divide)
        self._known_examples = num_examples
        Stream.__init__(self, num_examples or 0, batch, world=world, seed=seed, remainder=remainder)
        self._prepare_reading(num_workers, options)
        self._shuffle, self._wanted_divide, self._divide = shuffle, divide, divide
        self.dataset, self._start = own_stream(dataset)
        self._hides_rank = type(dataset).__module__.startswith("webdataset") and divide != "ranks"
        self._taken: list[list[int]] = []  # batches of this epoch: (local batch, how many of it)
        self._snapshot: Snapshot | None = None
        self._ahead: ReadAhead | None = None

    # The length.

    @property
    def num_examples(self) -> int:
        """The number of examples in the stream; if it is not known, the stream is read once to count them.

        A stream that was divided among the ranks before (``ranks``) is counted on this rank; the shares of the others
        are taken to be equally long.
        """
        if self._known_examples is None:
            length = getattr(self.dataset, "__len__", None)
            with suppress(TypeError, NotImplementedError):
                self._known_examples = None if length is None else int(length())
        if self._known_examples is None:
            is_own_share = self.divide == "ranks"
            plan = replace(self._plan(), divide="ranks" if is_own_share else "examples", size=1, rank=0)
            plan = replace(plan, num_processes=1, shuffle=0, remainder="short", position=0, snapshot=None)
            reader, counted = StreamReader(plan), 0
            while (read := reader.read(1024)) is not None:
                counted += len(read.examples)
            self._known_examples = counted * (self.size if is_own_share else 1)
            self.close()
        return self._known_examples

    @num_examples.setter
    def num_examples(self, num: int) -> None:
        self._known_examples = num or None

    @property
    def batch(self) -> int:
        """The local batch size, that of this worker; the global batch size is ``batch * size``."""
        return self._batch

    @batch.setter
    def batch(self, local_batch: int) -> None:
        partition.check_batch(local_batch, local_batch, 1)
        self._batch = local_batch

    @property
    def global_batch(self) -> int:
        """The examples of all workers in a batch; each has equally many, so that it is set to the nearest multiple."""
        return self._batch * self.size

    @global_batch.setter
    def global_batch(self, total: int) -> None:
        self.batch = max(1, round(total / self.size))

    @property
    def epoch_ended(self) -> bool:
        """Whether all batches of this epoch are taken, on all workers, each of which must ask."""
        if self._position == 0:
            return False
        ahead = self._ahead or self._begin(self._batch, None)
        return not ahead.exists()

    @property
    def divide(self) -> str:
        """How the stream is divided: ``examples``, ``shards`` or ``ranks``."""
        if self._divide is None:
            loaders = self.size * self._num_virtual_workers * max(1, self._num_workers)
            self._divide = "examples" if loaders == 1 else _division(self.dataset, loaders, self._hides_rank)
        return self._divide

    # The batches.

    def next_batch(self, local_batch: int | None = None) -> Batch | None:
        """Return the next batch, or None once at the end of the epoch; see :meth:`Stream.next_batch`."""
        parts = self._take(local_batch, None)
        return None if parts is None else parts[0][0]

    def next_parts(self, micro_batch: int, local_batch: int | None = None) -> list[list[Batch]] | None:
        """Return the next batch in micro-batches, or None once; see :meth:`Stream.next_parts`."""
        if micro_batch < 1:
            raise DataError("micro_batch", expected="1 or more", got=micro_batch, do="choose a larger one")
        return self._take(local_batch, micro_batch)

    def close(self) -> None:
        """End the reading processes; the next batch starts new ones."""
        self._ahead = None

    def set_epoch(self, epoch: int) -> None:
        """Move to the start of ``epoch``; if this is the current epoch, as after a resume, keep the position."""
        if epoch != self._epoch:
            self._forget_place()
        super().set_epoch(epoch)

    def _forget_place(self) -> None:
        self.close()
        self._taken, self._snapshot = [], None

    def _take(self, local_batch: int | None, micro_batch: int | None) -> list[list[Batch]] | None:
        local_batch, began = self._batch if local_batch is None else local_batch, time.perf_counter()
        if self._ahead is None or not self._ahead.fits(local_batch, micro_batch):
            self._ahead = self._begin(local_batch, micro_batch)
        ahead = self._ahead
        if not ahead.exists():
            if self._position == 0:
                got, do = "a stream that ended before", "choose a smaller batch, or check how the stream is read"
                what = "a global batch" if self.remainder == "drop" else "an example on every worker"
                raise DataError("data", expected=f"at least {what} in an epoch", got=got, do=do)
            self._forget_place()
            self._epoch, self._position = self._epoch + 1, 0
            return None
        parts, num_taken = ahead.take(micro_batch)
        self._snapshot = ahead.snapshot
        self._position += num_taken * self.size
        if not self._taken or self._taken[-1][0] != local_batch:
            self._taken.append([local_batch, 0])
        self._taken[-1][1] += 1
        ahead.read()
        self._waiting.add(self._epoch, began)
        return [[self._send(part) for part in worker] for worker in parts]

    def _fetch(self, epoch: int, position: int, local_batch: int) -> Batch:
        raise NotImplementedError

    # Reading.

    def _plan(self) -> Plan:
        return Plan(
            dataset=self.dataset, epoch=self._epoch, seed=self.seed, shuffle=self._shuffle, remainder=self.remainder,
            divide=self.divide, rank=self.rank, size=self.size, num_processes=max(1, self._num_workers),
            position=self._position, snapshot=self._snapshot, start=self._start, hides_rank=self._hides_rank,
        )  # fmt: skip

    def _begin(self, local_batch: int, micro_batch: int | None) -> ReadAhead:
        """Begin to read at the current position, and read a batch ahead."""
        num = self._num_virtual_workers
        if micro_batch is None and num > 1 and self.divide != "examples":
            do = "use next_parts, or divide='examples'"
            raise DataError("next_batch", expected="one worker in this process", got=f"{num} virtual ones", do=do)
        ahead = ReadAhead(
            WeakMethod(self._sequences), self._world, local_batch, micro_batch, fills=self.remainder != "drop"
        )
        ahead.read()
        return ahead

    def _sequences(self, local_batch: int, micro_batch: int | None, *, again: bool = False) -> list[Sequence]:
        """Return the batches of each virtual worker that reads by itself, from the current position on."""
        plan = self._plan()
        if again:
            plan = replace(plan, position=0, snapshot=None)
        num = self._num_virtual_workers
        if plan.divide == "examples":  # what virtual workers share is one batch, of which each takes its examples
            collate = Collating(self._collate, self.seed, self._epoch, micro_batch, 1 if micro_batch is None else num)
            return [self._sequence(plan, local_batch, collate, [0] * plan.num_processes)]
        collate = Collating(self._collate, self.seed, self._epoch, micro_batch, 1)
        if num > 1:
            plans = [replace(plan, rank=rank, size=num) for rank in range(num)]
        else:
            plans = [plan]
        return [self._replayed(each, local_batch // num, collate, again) for each in plans]

    def _replayed(self, plan: Plan, local_batch: int, collate: Collating, again: bool) -> Sequence:
        """Return the batches of a share, without those that were taken in this epoch already."""
        taken, first = [0] * plan.num_processes, 0  # examples of each process, and whose turn it is
        num_filled = 0
        for past_batch, num_batches in () if again else self._taken:
            past = self._sequence(plan, past_batch // self._num_virtual_workers, collate, list(taken), first)
            for _ in range(num_batches):
                read = past.next()
                if read is not None:
                    taken[read[0].process] += read[2]
                    first = (read[0].process + 1) % plan.num_processes
                else:
                    num_filled += 1
        sequence = self._sequence(plan, local_batch, collate, taken, first)
        sequence.num_filled = num_filled
        return sequence

    def _sequence(self, plan: Plan, local_batch: int, collate: Collating, taken: list[int], first: int = 0) -> Sequence:
        """Return the batches of one worker; ``taken`` has the examples that each process took before."""
        if self._num_workers > 0 and self._num_virtual_workers == 1:
            dataset = LoaderProcess(plan, local_batch, collate, taken, first)
            return InProcesses(dataset, num_workers=self._num_workers, pin_memory=self._pins, **self._options)
        if plan.divide == "examples":
            plan = replace(plan, num_processes=1)
        turns = [(first + turn) % plan.num_processes for turn in range(plan.num_processes)]
        plans = [replace(plan, process=number, skip=taken[number]) for number in turns]
        return InThisProcess([StreamReader(each) for each in plans], local_batch, collate)

    # The state.

    def __len__(self) -> int:
        """Return the number of batches in a whole epoch, if the stream is divided by examples."""
        return partition.num_batches(self.num_examples, self.global_batch, self.remainder)

    def num_batches_left(self) -> int:
        """Return the number of batches in the rest of this epoch, as far as the length of the stream tells."""
        left = max(0, self.num_examples - self._position)
        return partition.num_batches(left, self.global_batch, self.remainder)

    def state_dict(self) -> dict[str, Any]:
        """Return the state; batches that were read ahead do not count."""
        state = {"epoch": self._epoch, "position": self._position, "seed": self.seed, "partition": self.partition}
        state |= {"num_examples": self._known_examples, "shuffle": self._shuffle, "divide": self._divide}
        state |= {"loaders": [self.size * self._num_virtual_workers, max(1, self._num_workers)]}
        return state | {"taken": copy.deepcopy(self._taken), "source": self._snapshot and list(self._snapshot)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at the next unseen example of a saved state."""
        missing = sorted(self.state_dict().keys() - state.keys())
        if missing:
            do = "load a loader's own state"
            raise DataError("data state", expected=", ".join(missing), got=sorted(state), do=do)
        self._forget_place()
        loaders = [self.size * self._num_virtual_workers, max(1, self._num_workers)]
        if state["position"] > 0 and state["divide"] not in (None, "examples") and state["loaders"] != loaders:
            expected = "{} workers with {} loader processes each, among which the data set divided itself".format(
                *state["loaders"]
            )
            do = "resume on as many, or at the end of an epoch; divide='examples' fits any number"
            raise DataError("data state", expected=expected, got="{} and {}".format(*loaders), do=do)
        self.seed, self._shuffle = int(state["seed"]), int(state["shuffle"])
        self._epoch, self._position = int(state["epoch"]), int(state["position"])
        if self._position > 0 and state["divide"] is not None:
            self._divide = str(state["divide"])
        self._taken = copy.deepcopy(state["taken"])
        self._snapshot = None if state["source"] is None or self._start is None else Snapshot(*state["source"])

    def _check(self) -> None:
        partition.check_worker(self.rank, self.size)
        partition.check_remainder(self.remainder)


def own_stream(dataset: Any) -> tuple[Any, Any]:
    """Return the data set for one loader, and its state before it is read, if it has states.

    A data set with states moves as it is read, so each loader has its own copy: a second one would begin where the
    first has come to.
    """
    start = _start_state(dataset)
    with suppress(Exception):  # some cannot be copied
        return (dataset if start is None else copy.deepcopy(dataset)), start
    return dataset, start


def _start_state(dataset: Any) -> Any:
    """Return the state of a data set before it is read; None if it has no states from which it continues exactly."""
    if not (hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict")):
        return None
    if not hugging_face.resumes_exactly(dataset):
        return None
    try:
        return copy.deepcopy(dataset.state_dict())
    except NotImplementedError:
        return None


def _division(dataset: Any, loaders: int, hides_rank: bool) -> str:
    """Find out how to divide a stream: by its shards if it has enough, else by whether it asks for the loaders."""
    num_shards = _num_shards(dataset)
    if num_shards is not None:
        return "shards" if num_shards % loaders == 0 else "examples"
    asked: list[bool] = []
    told = Told(0, loaders, hides_rank=hides_rank, asked=lambda: asked.append(True))
    with OwnRandom("probe"), told:
        tried = dataset
        with suppress(Exception):  # a copy, since a data set may count how often it is read; some cannot be copied
            tried = copy.deepcopy(dataset)
        next(iter(tried), None)
    return "shards" if asked else "examples"


def _num_shards(dataset: Any) -> int | None:
    """Return the number of shards of a Hugging Face data set or a webdataset pipeline; None if it is not known."""
    num_shards = getattr(dataset, "num_shards", None)
    if isinstance(num_shards, int):
        return num_shards
    first = next(iter(getattr(dataset, "pipeline", None) or [None]), None)
    urls = getattr(first, "urls", None)
    return len(urls) if isinstance(urls, list) else None


def _check(dataset: Any, how: str, shuffle: int, divide: str | None) -> None:
    if how != "shards":
        do = "leave it out; shuffle=0 keeps the order of the stream"
        raise DataError("partition", expected="shards for a stream", got=how, do=do)
    if shuffle < 0:
        raise DataError("shuffle", expected="0 or more examples", got=shuffle, do="correct it")
    if divide is not None and divide not in DIVISIONS:
        raise DataError("divide", expected=" or ".join(DIVISIONS), got=divide, do="choose one of them")
    if hasattr(dataset, "__next__"):
        do = "give an object whose __iter__ begins anew, such as a torch IterableDataset"
        raise DataError("data", expected="a stream that can be read every epoch", got=type(dataset).__name__, do=do)
    hugging_face.check_undivided(dataset, divide)
