"""Gradient descent on the linear model y = w x + b for several batch sizes, as ``gd.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from rueda.records.json_record import Finite, JsonRecord, NotNegative, NotNegativeInt, Positive, PositiveInt, demand

MEASURED = ("epochs", "updates", "w", "b", "loss")
"""the values of which a row has the mean over the seeds, and as ``_spread`` the standard deviation"""
_LARGEST = 1e100  # far above any data, and its square times a number of points is finite


@dataclass(frozen=True, kw_only=True)
class DescentRow:
    """The results of one batch size: means over the seeds, and standard deviations as ``_spread``."""

    batch: PositiveInt
    epochs: Positive
    epochs_spread: NotNegative
    updates: Positive
    updates_spread: NotNegative
    w: Finite
    w_spread: NotNegative
    b: Finite
    b_spread: NotNegative
    loss: NotNegative
    """mean squared error of the final line on all points"""
    loss_spread: NotNegative
    diverged: NotNegativeInt = 0
    """the number of seeds whose loss grew until they were stopped"""


@dataclass(frozen=True, kw_only=True)
class DescentPath:
    """The parameters of the first seed's training, before the first update and after each one."""

    batch: PositiveInt
    w: tuple[Finite, ...]
    b: tuple[Finite, ...]
    loss: tuple[Finite, ...]
    """mean squared error on all points"""


@dataclass(frozen=True, kw_only=True)
class Points:
    """The data points of the first seed."""

    x: tuple[Finite, ...]
    y: tuple[Finite, ...]

    def moments(self) -> dict[str, float]:
        """Return the five means from which the mean squared error of ``y ≈ w x + b`` follows in closed form.

        ``L(w, b) = w² <xx> + b² + 2 w b <x> - 2 w <xy> - 2 b <y> + <yy>``

        >>> Points(x=(0.0, 2.0), y=(1.0, 3.0)).moments()
        {'x': 1.0, 'y': 2.0, 'xx': 2.0, 'xy': 3.0, 'yy': 5.0}
        """
        terms = [{"x": x, "y": y, "xx": x * x, "xy": x * y, "yy": y * y} for x, y in zip(self.x, self.y, strict=True)]
        return {name: sum(term[name] for term in terms) / len(terms) for name in terms[0]}

    def best_line(self) -> tuple[float, float]:
        """Return w and b of the least mean squared error.

        >>> Points(x=(0.0, 2.0), y=(1.0, 3.0)).best_line()
        (1.0, 1.0)
        """
        mean = self.moments()
        w = (mean["xy"] - mean["x"] * mean["y"]) / (mean["xx"] - mean["x"] ** 2)
        return w, mean["y"] - w * mean["x"]


def squared_error(moments: Mapping[str, float], w: float, b: float) -> float:
    """Return the mean squared error of a line from the :meth:`~Points.moments` of its data.

    >>> squared_error(Points(x=(0.0, 2.0), y=(1.0, 3.0)).moments(), w=1.0, b=0.0)
    1.0
    """
    at_b = b * b - 2 * b * moments["y"] + moments["yy"]
    return w * w * moments["xx"] + 2 * w * b * moments["x"] - 2 * w * moments["xy"] + at_b


@dataclass(frozen=True, kw_only=True)
class GradientDescent(JsonRecord):
    """The trainings of several batch sizes, side by side."""

    FILE: ClassVar = "gd.json"
    NOUN: ClassVar = "gradient descent on the linear model"
    COMMAND: ClassVar = "rueda gradient-descent"
    INDENT: ClassVar = None

    task: str = "linear"
    seeds: PositiveInt
    rate: Positive
    noise: NotNegative = 1.0
    """standard deviation of the noise within the slope"""
    data: Points
    rows: tuple[DescentRow, ...]
    paths: tuple[DescentPath, ...]
    kind: str = "gd"

    def check(self) -> None:
        """Raise ValueError if lists that belong together have different lengths, or points have no finite squares."""
        for index, path in enumerate(self.paths):
            _demand_equal(f"gd.paths[{index}]", w=path.w, b=path.b, loss=path.loss)
        _demand_equal("gd.data", x=self.data.x, y=self.data.y)
        largest = max(map(abs, (*self.data.x, *self.data.y)))
        demand(largest <= _LARGEST, "gd.data", f"x and y from {-_LARGEST:g} to {_LARGEST:g}", largest)


def _demand_equal(where: str, **lists: tuple[float, ...]) -> None:
    lengths = [len(values) for values in lists.values()]
    demand(lengths[0] > 0 and len(set(lengths)) == 1, where, f"{', '.join(lists)} of one length", lengths)
