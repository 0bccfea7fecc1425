"""Batches of any structure: tensors in tuples, lists, dicts and dataclasses, nested to any depth.

A batch is whatever a task's ``collate`` returns. The functions here visit its tensors, wherever they are, and leave all
other values (texts, numbers, None) as they are.

>>> batch = {"tokens": torch.zeros(4, 7, dtype=torch.int64), "meta": ("train", [torch.ones(4)])}
>>> num_examples(batch)
4
>>> map_tensors(lambda tensor: tensor.shape[0], batch)
{'tokens': 4, 'meta': ('train', [4])}
>>> select(batch, slice(0, 3))["meta"]
('train', [tensor([1., 1., 1.])])
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rueda.errors import DataError


def map_tensors(function: Callable[[Tensor], Any], batch: Any) -> Any:
    """Return a batch of the same structure in which ``function`` has replaced every tensor."""
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, Mapping):
        made = {name: map_tensors(function, value) for name, value in batch.items()}
        return made if type(batch) is dict else _like_mapping(batch, made)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):  # a NamedTuple
        return type(batch)(*(map_tensors(function, value) for value in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)(map_tensors(function, value) for value in batch)
    if is_dataclass(batch) and not isinstance(batch, type):
        values = {each.name: map_tensors(function, getattr(batch, each.name)) for each in fields(batch) if each.init}
        return replace(batch, **values)
    return batch


def tensors(batch: Any) -> Iterator[Tensor]:
    """Yield the tensors of a batch, in the order of its structure."""
    found: list[Tensor] = []
    map_tensors(found.append, batch)
    return iter(found)


def num_examples(batch: Any) -> int:
    """Return the number of examples in a batch: the length of the first dimension of its first tensor.

    Raises:
        DataError: the batch has no tensor with a dimension.
    """
    for tensor in tensors(batch):
        if tensor.dim() > 0:
            return int(tensor.size(0))
    do = "return tensors from collate, the first of which counts the examples"
    raise DataError("batch", expected="at least one tensor whose first dimension counts examples", got=batch, do=do)


def num_bytes(values: Any) -> int:
    """Return the bytes of all tensors in values of any structure; a sparse tensor counts as a dense one.

    >>> num_bytes({"images": torch.zeros(4, 7), "labels": [torch.zeros(4, dtype=torch.int64)]})
    144
    """
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors(values))


def select(batch: Any, chosen: slice) -> Any:
    """Return the chosen examples of a batch in which every tensor with a dimension counts examples in its first one.

    Raises:
        DataError: its tensors differ in their first dimension, so they do not all count examples.
    """
    check_divisible(batch)
    return map_tensors(lambda tensor: tensor[chosen] if tensor.dim() else tensor, batch)


def check_divisible(batch: Any) -> None:
    """Refuse a batch whose tensors differ in their first dimension: it cannot be divided between its examples."""
    lengths = {int(tensor.size(0)) for tensor in tensors(batch) if tensor.dim()}
    if len(lengths) > 1:
        do = "collate each part by itself"
        raise DataError("batch", expected="tensors of one length, to be divided", got=sorted(lengths), do=do)


def concatenate(batches: list[Any]) -> Any:
    """Join batches of one structure along the first dimension of their tensors.

    >>> concatenate([(torch.ones(1), "a"), (torch.zeros(2), "a")])
    (tensor([1., 0., 0.]), 'a')
    """
    if len(batches) == 1:
        return batches[0]
    parts = [list(tensors(batch)) for batch in batches]
    joined = iter([torch.cat(same) if same[0].dim() else same[0] for same in zip(*parts, strict=True)])
    return map_tensors(lambda _: next(joined), batches[0])


def _like_mapping(batch: Mapping[Any, Any], values: dict[Any, Any]) -> Any:
    """Return a mapping of the same class, such as the BatchEncoding of a tokenizer, or a dict if it cannot be made."""
    try:
        return type(batch)(values)  # type: ignore[call-arg]
    except TypeError:
        return values
