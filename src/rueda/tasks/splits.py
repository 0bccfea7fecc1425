"""Validation data that are split off the training data, and test data under several names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch.utils.data import Subset

from rueda.data import Arrays
from rueda.data.loader import is_stream
from rueda.errors import TaskError
from rueda.world.seeds import derive

RESERVED = ("train", "validation", "test")
"""names of sets in records, which a further test set may not have"""


def split_off(data: Any, fraction: float, task: str) -> tuple[Any, Any]:
    """Divide a data set into a training and a validation part, always in the same way.

    The examples are drawn by a fixed seed that depends on nothing but the number of examples, so that every recipe,
    seed and number of workers validates on the same examples.

    Args:
        data: the whole training data.
        fraction: how many of the examples are for validation, above 0 and below 1.
        task: the name of the task, for messages.

    >>> import torch
    >>> train, validation = split_off(Arrays(torch.arange(20.0), torch.arange(20)), 0.1, "mine")
    >>> len(train), len(validation), sorted([*train.targets.tolist(), *validation.targets.tolist()]) == list(range(20))
    (18, 2, True)
    """
    if is_stream(data):
        do = "give validation=... its own data"
        expected = "training data with an index and a length, to be divided"
        raise TaskError(f"validation of task {task}", expected=expected, got=type(data).__name__, do=do)
    total = len(data)
    size = round(fraction * total)
    if not 0 < size < total:
        do = "choose another fraction, or give validation=... its own data"
        raise TaskError(f"validation of task {task}", expected=f"1 to {total - 1} examples", got=size, do=do)
    order = np.random.default_rng(derive("validation", total)).permutation(total)
    # Both parts keep the order of the data, as a set that was never divided has it.
    validation, train = np.sort(order[:size]), np.sort(order[size:])
    if isinstance(data, Arrays):
        return data.subset(train), data.subset(validation)
    return Subset(data, train.tolist()), Subset(data, validation.tolist())


def check_validation(value: object, task: str) -> None:
    """Refuse a number that is not a fraction of the training data."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and not 0 < value < 1:  # type: ignore[operator]
        do = "give e.g. 0.1, or the validation data themselves"
        raise TaskError(f"validation of task {task}", expected="a fraction between 0 and 1", got=value, do=do)


def check_tests(tests: Mapping[str, Any], task: str) -> None:
    """Refuse an empty table of test sets, and names that records use for something else."""
    names = list(tests)
    if not names:
        raise TaskError(f"test data of task {task}", expected="one set or more", got={}, do="name one")
    for name in names[1:]:
        if not isinstance(name, str) or name in RESERVED or not name.strip():
            expected = f"a name other than {', '.join(RESERVED)}"
            raise TaskError(f"test data of task {task}", expected=expected, got=name, do="rename it")
