"""The number of examples of any data, and examples of a stream that are read into memory."""

from __future__ import annotations

from itertools import islice
from typing import Any

from rueda.data.loader import is_stream


def count_examples(data: Any) -> int:
    """Return the number of examples; a stream that does not tell its length is read once.

    >>> count_examples([1, 2, 3]), count_examples({"a", "b"})
    (3, 2)
    """
    if not is_stream(data):
        return len(data)
    from rueda.data.iterable_loader import IterableLoader

    return IterableLoader(data, 1).num_examples


def indexed(data: Any, most: int | None = None) -> Any:
    """Return data with an index and a length; of a stream, its first examples as a list.

    Args:
        data: the data.
        most: the number of examples that are read from a stream; None reads all of them.
    """
    if not is_stream(data):
        return data
    if hasattr(data, "set_epoch"):
        data.set_epoch(0)
    return list(islice(iter(data), most))
