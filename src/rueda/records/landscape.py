"""The landscape around trained models, as ``landscape.json``: surfaces, lines, interpolations, the training path.

::

    members[k].surface          loss and error over origin + x d1 + y d2
    members[k].path             the same in the plane of the training path, with the path on it
    members[k].lines            over origin + alpha d
    members[k].interpolation    over (1 - alpha) A + alpha B

One member in a run's own file, several in the file of a gallery. What is not finite (the network overflowed there) is
null in the file and NaN in memory.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from rueda.records.json_record import FORMAT, JsonRecord

FILE = "landscape.json"


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """Mean loss and share of wrong answers over points: rows of columns for a surface, a row a direction for lines."""

    split: str
    """which examples: ``train`` or ``test``"""
    loss: tuple[tuple[float, ...], ...]
    error: tuple[tuple[float, ...], ...] | None = None
    """None for a task without a metric"""


@dataclass(frozen=True, kw_only=True)
class Trail:
    """The training path in the plane of a surface."""

    steps: tuple[int, ...]
    """updates made at each checkpoint"""
    x: tuple[float, ...]
    y: tuple[float, ...]
    explained: tuple[float, ...]
    """share of the path's variance along either axis"""
    loss: tuple[float, ...] = ()
    """training loss of each checkpoint itself, which may lie off the plane"""
    rebuilt_start: bool = False
    """the first point is the initial model, built again from the recipe's seed"""


@dataclass(frozen=True, kw_only=True)
class Surface:
    """Values over origin + x d1 + y d2: ``sheet.loss[row of y][column of x]``."""

    x: tuple[float, ...]
    y: tuple[float, ...]
    sheets: tuple[Sheet, ...]
    directions: str
    """how they were made: ``filter-normalised, seed 0`` or ``principal components of the training path``"""
    cosine: float = 0.0
    """of the angle between them"""
    batch_norm: str = "running"
    """statistics at each point: ``running`` (those of the model) or ``recalibrated``"""
    trail: Trail | None = None

    def centre(self, values: tuple[tuple[float, ...], ...]) -> float:
        """Give the value at the model itself, or at the point nearest to it."""
        row, column = (min(range(len(axis)), key=lambda i: abs(axis[i])) for axis in (self.y, self.x))
        return values[row][column]

    def edge(self, values: tuple[tuple[float, ...], ...]) -> float:
        """Give the median on the rim: low around a flat minimum, high around a sharp one.

        >>> rows = ((3.0, 2.0, 3.0), (2.0, 0.0, 2.0), (3.0, 2.0, 9.0))
        >>> sheet = Sheet(split="train", loss=rows)
        >>> surface = Surface(x=(-1.0, 0.0, 1.0), y=(-1.0, 0.0, 1.0), sheets=(sheet,), directions="")
        >>> surface.centre(rows), surface.edge(rows)
        (0.0, 2.5)
        """
        rim = [*values[0], *values[-1], *(value for row in values[1:-1] for value in (row[0], row[-1]))]
        # A point that overflowed is higher than any other.
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
class Member:
    """What was found around one model."""

    name: str
    """of the run or checkpoint"""
    weights: str
    """a fingerprint of the parameters: another one means another model"""
    num_parameters: int
    num_examples: int
    """of each split"""
    step: int | None = None
    """updates made, if known"""
    workers: int | None = None
    """with which it was trained; None: not known (an older file, a checkpoint without its run)"""
    rehearsed: bool | None = None
    """those workers were virtual, in one process; None: not known"""
    surface: Surface | None = None
    path: Surface | None = None
    lines: Lines | None = None
    interpolation: Interpolation | None = None

    def with_old(self, old: Member) -> Member:
        """Keep what an earlier look at the same weights and examples found and this one did not look for."""
        if (old.weights, old.num_examples) != (self.weights, self.num_examples):
            return self
        return replace(self, **{name: getattr(old, name) for name in PICTURES if getattr(self, name) is None})


PICTURES = ("surface", "path", "lines", "interpolation")


@dataclass(frozen=True, kw_only=True)
class Landscape(JsonRecord):
    """One or several trained models of a task, and what lies around them."""

    FILE: ClassVar = FILE
    NOUN: ClassVar = "a landscape"
    COMMAND: ClassVar = "rueda examine"
    INDENT: ClassVar = None

    task: str
    members: tuple[Member, ...]
    command: str = ""
    environment: dict[str, Any] = field(default_factory=dict)
    kind: str = "landscape"
    format: int = FORMAT

    def check(self) -> None:
        """Refuse what would fail later, far from the file: values that do not fit their axes."""
        if not self.members:
            raise ValueError("landscape.members: expected at least one model, got none")
        for member in self.members:
            for picture in (member.surface, member.path):
                if picture is not None:
                    _check_sheets(picture.sheets, len(picture.y), len(picture.x))
                    trail = picture.trail
                    if trail is not None and not (
                        len(trail.steps) == len(trail.x) == len(trail.y) > 0 and len(trail.explained) == 2
                    ):
                        raise ValueError("landscape.trail: expected as many steps as x and y, and two shares")
            for line in (member.lines, member.interpolation):
                if line is not None:
                    _check_sheets(line.sheets, None, len(line.alphas))


def _check_sheets(sheets: tuple[Sheet, ...], num_rows: int | None, num_columns: int) -> None:
    if not sheets or num_columns < 2:
        raise ValueError("landscape: expected a sheet of values over an axis of 2 or more points, got none")
    for sheet in sheets:
        for rows in (sheet.loss, sheet.error):
            if rows is None:
                continue
            if not rows or num_rows not in (None, len(rows)) or any(len(row) != num_columns for row in rows):
                raise ValueError(f"landscape, sheet {sheet.split}: expected values that fit the axes, got others")
