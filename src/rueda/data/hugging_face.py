"""What Hugging Face's streaming data sets need beyond those of torch.

``rueda.Loader`` takes the data sets of the library ``datasets`` (``pip install 'rueda[huggingface]'``) as they are: a
``Dataset`` is read by index, in whole batches, and an ``IterableDataset`` (``streaming=True``) as a stream. Nothing
here imports the library.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rueda.errors import DataError


def check_undivided(dataset: Any, divide: str | None) -> None:
    """Refuse a streaming data set that ``split_dataset_by_node`` has divided already, unless that is stated."""
    if _is_streaming(dataset) and getattr(dataset, "_distributed", None) is not None and divide != "ranks":
        do = "leave split_dataset_by_node out, or pass divide='ranks'"
        raise DataError("data", expected="a stream of all examples", got="one that is divided by rank", do=do)


def resumes_exactly(dataset: Any) -> bool:
    """Return whether a data set that has states continues from one exactly.

    A stream with the library's own shuffle buffer does not: the buffer's contents are not part of its state.
    """
    return not _is_streaming(dataset) or not any(
        type(stage).__name__.startswith("BufferShuffled") for stage in _stages(getattr(dataset, "_ex_iterable", None))
    )


def _stages(stage: Any) -> Iterator[Any]:
    if stage is None:
        return
    yield stage
    yield from _stages(getattr(stage, "ex_iterable", None))
    for each in getattr(stage, "ex_iterables", None) or []:
        yield from _stages(each)


def _is_streaming(dataset: Any) -> bool:
    return type(dataset).__module__.startswith("datasets.") and hasattr(dataset, "_ex_iterable")
