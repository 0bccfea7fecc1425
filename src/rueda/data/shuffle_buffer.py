"""A shuffle buffer whose choices are a function of a counter, so that its contents are known without the data.

The buffer holds ``size`` examples. Draw number t returns a random one of them and puts the stream's next example in its
place; when the stream has ended, the buffer is emptied in random order. An example thus moves by about ``size`` places.
The choice at draw t is ``draws(key, t)`` (:mod:`rueda.data.counter`), which does not depend on the examples. So
:func:`contents_at` tells which examples of the stream the buffer holds after t draws, and a stream that can continue in
its middle is resumed from the oldest of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rueda.data.counter import draws

_BLOCK = 4096


class ShuffleBuffer:
    """Shuffles a stream.

    >>> list(ShuffleBuffer(iter("abcdefgh"), size=4, key=3))
    ['a', 'b', 'f', 'g', 'd', 'e', 'h', 'c']

    Args:
        source: the stream.
        size: the number of examples in the buffer; with 1 or less the order does not change.
        key: seeds the choices.
        contents: to resume: the examples in the buffer, each with its number in the stream.
        num_drawn: to resume: how many examples were returned.
        num_read: to resume: how many examples of the stream were read.
    """

    def __init__(
        self,
        source: Iterator[Any],
        size: int,
        key: int,
        *,
        contents: list[tuple[int, Any]] | None = None,
        num_drawn: int = 0,
        num_read: int = 0,
    ) -> None:
        self._source, self._size, self._key = source, max(1, size), key
        self._contents: list[tuple[int, Any]] = contents or []
        self._num_read, self._filled = num_read, contents is not None
        self._choices = _choices(key, num_drawn)
        self.ended_at: int | None = None
        """the number of examples in the stream, once its end is known"""

    def oldest(self) -> int:
        """Return the number, within the stream, of the oldest example that is still needed."""
        return min((number for number, _ in self._contents), default=self._num_read)

    def __iter__(self) -> ShuffleBuffer:
        return self

    def __next__(self) -> Any:
        contents = self._contents
        while not self._filled:
            if len(contents) == self._size or not self._read(len(contents)):
                self._filled = True
        if not contents:
            raise StopIteration
        slot = next(self._choices) % len(contents)
        _, example = contents[slot]
        if not self._read(slot):
            contents[slot] = contents[-1]
            contents.pop()
        return example

    def _read(self, slot: int) -> bool:
        """Read an example of the stream into a slot; return False at the end of the stream."""
        if self.ended_at is not None:
            return False
        try:
            example = next(self._source)
        except StopIteration:
            self.ended_at = self._num_read
            return False
        if slot == len(self._contents):
            self._contents.append((self._num_read, example))
        else:
            self._contents[slot] = (self._num_read, example)
        self._num_read += 1
        return True


def contents_at(num_drawn: int, size: int, key: int, ended_at: int | None = None) -> tuple[list[int], int]:
    """Return the numbers of the examples that a buffer holds after ``num_drawn`` draws, and how many it has read.

    >>> contents_at(2, size=4, key=3)
    ([4, 5, 2, 3], 6)

    Args:
        num_drawn: the number of draws.
        size: of the buffer.
        key: seeds the choices.
        ended_at: the length of the stream, if its end was reached.
    """
    size = max(1, size)
    num_read = size if ended_at is None else min(size, ended_at)
    contents, choices = list(range(num_read)), _choices(key, 0)
    for _ in range(num_drawn):
        slot = next(choices) % len(contents)
        if ended_at is None or num_read < ended_at:
            contents[slot] = num_read
            num_read += 1
        else:
            contents[slot] = contents[-1]
            contents.pop()
    return contents, num_read


def _choices(key: int, start: int) -> Iterator[int]:
    while True:
        yield from draws(key, np.arange(start, start + _BLOCK, dtype=np.int64)).tolist()
        start += _BLOCK
