"""The loss landscape around trained models, as ``landscape.json``: surfaces, lines, interpolations, training paths.

::

    members[k].surface          loss and error over origin + x d1 + y d2
    members[k].path             the same in the plane of the training path, with the path on it
    members[k].lines            over origin + alpha d
    members[k].interpolation    over (1 - alpha) A + alpha B

The file of a run has one member, the file of a gallery has several. A value that is not finite, where the network
overflowed, is null in the file and NaN in memory.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from rueda.records.examined_model import ExaminedModel
from rueda.records.json_record import JsonRecord, Rule, demand


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """Mean loss and classification error on a grid: [y][x] for a surface, [direction][alpha] for lines."""

    split: str
    """which examples: ``train`` or ``test``"""
    loss: tuple[tuple[float, ...], ...]
    error: tuple[tuple[float, ...], ...] | None = None
    """None for a task without a metric"""


@dataclass(frozen=True, kw_only=True)
class TrainingPath:
    """The training path in the plane of a surface."""

    steps: tuple[int, ...]
    """the number of updates at each checkpoint"""
    x: tuple[float, ...]
    y: tuple[float, ...]
    explained: tuple[float, ...]
    """the fraction of the path's variance along each of the two axes"""
    loss: tuple[float, ...] = ()
    """training loss at each checkpoint, which need not lie in the plane"""
    rebuilt_start: bool = False
    """the first point is the initial model, rebuilt from the recipe's seed"""


@dataclass(frozen=True, kw_only=True)
class Surface:
    """Values over origin + x d1 + y d2: ``sheet.loss[row of y][column of x]``."""

    x: tuple[float, ...]
    y: tuple[float, ...]
    sheets: tuple[Sheet, ...]
    directions: str
    """how the directions were made: ``filter-normalised, seed 0`` or ``principal components of the training path``"""
    cosine: float = 0.0
    """cosine of the angle between the two directions"""
    batch_norm: str = "running"
    """batch-norm statistics at each point: ``running`` (those of the model) or ``recalibrated``"""
    trail: TrainingPath | None = None

    def centre(self, values: tuple[tuple[float, ...], ...]) -> float:
        """Return the value at the model itself, or at the grid point nearest to it."""
        row, column = (min(range(len(axis)), key=lambda i: abs(axis[i])) for axis in (self.y, self.x))
        return values[row][column]

    def edge(self, values: tuple[tuple[float, ...], ...]) -> float:
        """Return the median over the outermost points: low around a flat minimum, high around a sharp one.

        >>> rows = ((3.0, 2.0, 3.0), (2.0, 0.0, 2.0), (3.0, 2.0, 9.0))
        >>> sheet = Sheet(split="train", loss=rows)
        >>> surface = Surface(x=(-1.0, 0.0, 1.0), y=(-1.0, 0.0, 1.0), sheets=(sheet,), directions="")
        >>> surface.centre(rows), surface.edge(rows)
        (0.0, 2.5)
        """
        rim = [*values[0], *values[-1], *(value for row in values[1:-1] for value in (row[0], row[-1]))]
        # A point where the network overflowed counts as higher than any other.
        return statistics.median(value if math.isfinite(value) else math.inf for value in rim)


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Values over origin + alpha d, for one or several directions d: ``sheet.loss[direction][alpha]``."""

    alphas: tuple[float, ...]
    sheets: tuple[Sheet, ...]
    directions: str
    batch_norm: str = "running"


@dataclass(frozen=True, kw_only=True)
class Interpolation:
    """Values over (1 - alpha) A + alpha B: ``sheet.loss[0][alpha]``."""

    start: str
    """the name of A"""
    end: str
    """the name of B"""
    alphas: tuple[float, ...]
    sheets: tuple[Sheet, ...]
    batch_norm: str = "none"
    """``interpolated``, ``recalibrated``, or ``none`` without batch norm"""


@dataclass(frozen=True, kw_only=True)
class ModelLandscape(ExaminedModel):
    """The landscape around one trained model."""

    weights: str
    """a checksum of the parameters: another one means another model"""
    num_parameters: int
    num_examples: int
    """number of examples of each split"""
    step: int | None = None
    """number of updates, if known"""
    surface: Surface | None = None
    path: Surface | None = None
    lines: Lines | None = None
    interpolation: Interpolation | None = None

    def with_old(self, old: ModelLandscape) -> ModelLandscape:
        """Fill in missing parts from an earlier landscape, if it is one of the same weights and examples."""
        if (old.weights, old.num_examples) != (self.weights, self.num_examples):
            return self
        return replace(self, **{name: getattr(old, name) for name in PICTURES if getattr(self, name) is None})


PICTURES = ("surface", "path", "lines", "interpolation")


@dataclass(frozen=True, kw_only=True)
class Landscape(JsonRecord):
    """The landscapes around one or several trained models of a task."""

    FILE: ClassVar = "landscape.json"
    NOUN: ClassVar = "a landscape"
    COMMAND: ClassVar = "rueda examine"
    INDENT: ClassVar = None

    task: str
    members: Annotated[tuple[ModelLandscape, ...], Rule("at least one model", bool)]
    kind: str = "landscape"

    def check(self) -> None:
        """Raise ValueError if values do not fit their axes."""
        for member in self.members:
            for picture in filter(None, (member.surface, member.path)):
                _check_sheets(picture.sheets, len(picture.y), len(picture.x))
                if (trail := picture.trail) is not None:
                    lengths = [len(values) for values in (trail.steps, trail.x, trail.y, trail.explained)]
                    fits = lengths[0] == lengths[1] == lengths[2] > 0 and lengths[3] == 2
                    demand(fits, "landscape.trail", "as many steps as x and y, and two shares", lengths)
            for line in (member.lines, member.interpolation):
                if line is not None:
                    _check_sheets(line.sheets, None, len(line.alphas))


def _check_sheets(sheets: tuple[Sheet, ...], num_rows: int | None, num_columns: int) -> None:
    axis = "a sheet of values over an axis of 2 or more points"
    demand(bool(sheets) and num_columns >= 2, "landscape", axis, "none")
    for sheet in sheets:
        for rows in (sheet.loss, *(() if sheet.error is None else (sheet.error,))):
            lengths = [len(row) for row in rows]
            fits = bool(lengths) and num_rows in (None, len(lengths)) and set(lengths) == {num_columns}
            demand(fits, f"landscape, sheet {sheet.split}", "values that fit the axes", lengths)
