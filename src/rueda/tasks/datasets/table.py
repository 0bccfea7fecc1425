"""Generated tables: rows of numbers and categories, with a number or a class to predict.

The value of a row is a smooth function of its numbers, with products of pairs, plus one effect of each category and
noise::

    y = sum_i a_i x_i + sum_i b_i sin(2 x_i) + sum_(i<j) c_ij x_i x_j + sum_k effect_k[category_k] + noise

so a linear model explains a part of it and a perceptron most. The class of a row is the quintile of y without most of
its noise. The coefficients depend on the seed alone, so that training and test rows follow one law.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rueda.data.counter import draws, key_of, uniform
from rueda.errors import DataError
from rueda.tasks.datasets.published import check_split

CATEGORIES = (8, 20, 5)
"""number of values of each categorical column"""
NUM_NUMBERS = 12
"""columns of numbers"""
NUM_CLASSES = 5
_SIZES = {"train": 8_000, "test": 2_000}
_NOISE = 0.3


@dataclass(frozen=True)
class Table:
    """The columns of a table with N rows."""

    numbers: Tensor  # [N, 12]
    categories: Tensor  # int64 [N, 3]
    values: Tensor  # [N]
    classes: Tensor  # int64 [N]


def table(split: str = "train", *, num_rows: int | None = None, seed: int = 0) -> Table:
    """Generate a split of the table.

    Args:
        split: ``train`` or ``test``.
        num_rows: number of rows; by default 8,000 for training and 2,000 for testing.
        seed: seed of the law and of all random numbers.

    >>> rows = table("test", num_rows=4)
    >>> rows.numbers.shape, rows.categories.tolist()[0], rows.classes.tolist()
    (torch.Size([4, 12]), [7, 0, 3], [3, 1, 4, 1])
    """
    check_split("table", split)
    count = _SIZES[split] if num_rows is None else num_rows
    if count < 1:
        raise DataError("table", expected="1 row or more", got=count, do="ask for more")
    stream = key_of(seed, 0 if split == "train" else 1)
    numbers = _normal(key_of(stream, 0), (count, NUM_NUMBERS))
    columns = [_below(key_of(stream, 1, place), count, values) for place, values in enumerate(CATEGORIES)]
    categories = np.stack(columns, axis=1)
    clean = _law(seed, numbers, categories)
    noise = _normal(key_of(stream, 2), (count,))
    borders = np.array([-1.6, -0.5, 0.5, 1.6])  # near the quintiles
    return Table(
        torch.from_numpy(numbers.astype(np.float32)),
        torch.from_numpy(categories),
        torch.from_numpy((clean + _NOISE * noise).astype(np.float32)),
        torch.from_numpy(np.searchsorted(borders, clean + 0.1 * noise)),
    )


def _law(seed: int, numbers: NDArray[np.float64], categories: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the value of each row without noise."""
    key = key_of(seed, 2)
    linear, wave = _normal(key_of(key, 0), (2, NUM_NUMBERS)) * 0.35
    pairs = np.triu(_normal(key_of(key, 1), (NUM_NUMBERS, NUM_NUMBERS)), 1) * 0.12
    value = numbers @ linear + np.sin(2 * numbers) @ wave + np.einsum("ni,ij,nj->n", numbers, pairs, numbers)
    for place, count in enumerate(CATEGORIES):
        value += 0.5 * _normal(key_of(key, 2, place), (count,))[categories[:, place]]
    return np.asarray(value, dtype=np.float64)


def _below(key: int, count: int, values: int) -> NDArray[np.int64]:
    return np.asarray(draws(key, np.arange(count)) % np.uint64(values), dtype=np.int64)


def _normal(key: int, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Draw from the normal distribution by the method of Box and Muller."""
    count = int(np.prod(shape))
    first, second = (uniform(draws(key_of(key, number), np.arange(count))) for number in (0, 1))
    drawn = np.sqrt(-2 * np.log1p(-first)) * np.cos(2 * np.pi * second)
    return np.asarray(drawn, dtype=np.float64).reshape(shape)
