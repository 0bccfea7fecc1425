"""Gradient descent on the linear model y = w x + b for several batch sizes, as ``gd.json``."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rueda.records.json_record import FORMAT, JsonRecord, demand, demand_numbers

MEASURED = ("epochs", "updates", "w", "b", "loss")
"""what a row gives as a mean, and with ``_spread`` as a standard deviation, over the seeds"""


@dataclass(frozen=True, kw_only=True)
class DescentRow:
    """What one batch size comes to over the seeds: means, and standard deviations as ``_spread``."""

    batch: int
    epochs: float
    epochs_spread: float
    updates: float
    updates_spread: float
    w: float
    w_spread: float
    b: float
    b_spread: float
    loss: float
    """mean squared error of the final line on all points"""
    loss_spread: float


@dataclass(frozen=True, kw_only=True)
class DescentPath:
    """The way of the first seed: before the first update, and after each."""

    batch: int
    w: tuple[float, ...]
    b: tuple[float, ...]
    loss: tuple[float, ...]
    """on all points"""


@dataclass(frozen=True, kw_only=True)
class Points:
    """The points of the first seed."""

    x: tuple[float, ...]
    y: tuple[float, ...]

    def moments(self) -> dict[str, float]:
        """Give the five means from which the mean squared error of ``y ≈ w x + b`` follows in closed form.

        ``L(w, b) = w² <xx> + b² + 2 w b <x> - 2 w <xy> - 2 b <y> + <yy>``

        >>> Points(x=(0.0, 2.0), y=(1.0, 3.0)).moments()
        {'x': 1.0, 'y': 2.0, 'xx': 2.0, 'xy': 3.0, 'yy': 5.0}
        """
        terms = [{"x": x, "y": y, "xx": x * x, "xy": x * y, "yy": y * y} for x, y in zip(self.x, self.y, strict=True)]
        return {name: sum(term[name] for term in terms) / len(terms) for name in terms[0]}


@dataclass(frozen=True, kw_only=True)
class GradientDescent(JsonRecord):
    """Batch sizes side by side."""

    FILE: ClassVar = "gd.json"
    NOUN: ClassVar = "gradient descent on the linear model"
    COMMAND: ClassVar = "rueda gradient-descent"
    INDENT: ClassVar = None

    task: str = "linear"
    seeds: int
    rate: float
    environment: dict[str, Any] = field(default_factory=dict)
    data: Points
    rows: tuple[DescentRow, ...]
    paths: tuple[DescentPath, ...]
    kind: str = "gd"
    format: int = FORMAT

    def check(self) -> None:
        """Refuse what is no number, and lists of different lengths."""
        demand_numbers(self, "gd", above=("seeds", "rate"))
        for index, row in enumerate(self.rows):
            spreads = (f"{name}_spread" for name in MEASURED)
            demand_numbers(row, f"gd.rows[{index}]", above=("batch", "epochs", "updates"), from_zero=("loss", *spreads))
            demand(math.isfinite(row.w + row.b), f"gd.rows[{index}]", "numbers w and b", (row.w, row.b))
        for index, path in enumerate(self.paths):
            demand(path.batch >= 1, f"gd.paths[{index}].batch", "1 or more", path.batch)
            _demand_equal(f"gd.paths[{index}]", w=path.w, b=path.b, loss=path.loss)
        _demand_equal("gd.data", x=self.data.x, y=self.data.y)


def _demand_equal(where: str, **lists: tuple[float, ...]) -> None:
    for name, values in lists.items():
        demand(all(math.isfinite(value) for value in values), f"{where}.{name}", "numbers", values)
    lengths = [len(values) for values in lists.values()]
    demand(lengths[0] > 0 and len(set(lengths)) == 1, where, f"{', '.join(lists)} of one length", lengths)
