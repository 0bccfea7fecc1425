"""Read the next batch of a stream before it is asked for, and agree with the other workers on where the epoch ends."""

from __future__ import annotations

from typing import Any, Protocol
from weakref import WeakMethod

from rueda.data.agreement import Agreement
from rueda.data.stream import Ranked
from rueda.data.stream_reader import Snapshot
from rueda.data.stream_sequence import Item, Sequence
from rueda.errors import DataError


class Begin(Protocol):
    """Makes the sequences of batches that this worker reads."""

    def __call__(self, local_batch: int, micro_batch: int | None, *, again: bool = False) -> list[Sequence]:
        """Return them from the present place, or ``again`` from the start of the shares."""


class ReadAhead:
    """The next batch, which is read before it is asked for, and whether all workers have one.

    Args:
        begin: makes the sequences of batches, from the present place or ``again`` from the start of the shares. A weak
            reference: in a reference cycle, reading processes would live on until a garbage collection.
        world: the workers that agree on the end.
        local_batch: examples of a batch.
        micro_batch: examples of its parts; None for one part.
        fills: a worker whose share has ended begins it again, until the last worker has ended.
    """

    def __init__(
        self, begin: WeakMethod[Begin], world: Ranked, local_batch: int, micro_batch: int | None, *, fills: bool
    ) -> None:
        self._begin, self._local_batch, self._micro_batch, self._fills = begin, local_batch, micro_batch, fills
        self._sequences = self._begun()
        self._fillers: dict[int, Sequence] = {}
        self._agreement = Agreement(world, by_any=fills)
        self._found: list[Item | None] = []
        self.snapshot: Snapshot | None = None

    def fits(self, local_batch: int, micro_batch: int | None) -> bool:
        """Return whether the batch that was read is the one that is wanted."""
        same_parts = micro_batch == self._micro_batch or all(each.collates_late for each in self._sequences)
        return local_batch == self._local_batch and same_parts

    def read(self) -> None:
        """Read the next batch, and tell the other workers whether there was one."""
        self._found = [sequence.next() for sequence in self._sequences]
        exists = any if self._fills else all
        self._agreement.tell(exists(found is not None for found in self._found))

    def exists(self) -> bool:
        """Return whether there is another batch, on all workers."""
        return self._agreement.answer()

    def take(self, micro_batch: int | None) -> tuple[list[list[Any]], int]:
        """Return the batch in parts, and the number of its examples."""
        items = [found or self._filler(number) for number, found in enumerate(self._found)]
        self.snapshot = items[0][0].snapshot
        parts = []
        for sequence, (read, made, _) in zip(self._sequences, items, strict=True):
            parts += sequence.parts(read, micro_batch) if made is None else made
        return parts, sum(item[2] for item in items)

    def _filler(self, number: int) -> Item:
        """Return the next batch of a share that is read again from its start, because other workers have more."""
        if number not in self._fillers:
            self._begin_filler(number)
            for _ in range(self._sequences[number].num_filled):  # those that were taken before a resume
                self._filler(number)
        item = self._fillers[number].next()
        if item is None:  # once through the share: again from its start
            self._begin_filler(number)
            item = self._fillers[number].next()
        if item is None:
            do = "use divide='examples', or a smaller batch or fewer workers"
            raise DataError("data", expected="an example for every worker", got="an empty share", do=do)
        return item

    def _begin_filler(self, number: int) -> None:
        self._fillers[number] = self._begun(again=True)[number]

    def _begun(self, *, again: bool = False) -> list[Sequence]:
        begin = self._begin()
        assert begin is not None  # the loader that owns this
        return begin(self._local_batch, self._micro_batch, again=again)
