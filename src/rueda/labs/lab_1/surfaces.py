"""Stored surfaces of deep networks with and without skip connections, made by :mod:`rueda.labs.lab_1.networks`."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from rueda.labs.showing import Drawn, Source, stored
from rueda.records.landscape import Landscape
from rueda.report.figures.loss_surfaces import contour_plot, surface_plot

DEPTHS = (5, 10, 20)
STORED = Path(__file__).parents[1] / "stored" / "lab_1_skip_connections.json"


@cache
def landscape() -> Landscape:
    """Return the stored landscape."""
    return Landscape.load(STORED)


def source() -> Source:
    """Return where it comes from."""
    return stored("rueda/labs/stored/lab_1_skip_connections.json, computed by rueda.examine", landscape().environment)


def surfaces(depth: int) -> list[Drawn]:
    """Draw the two surfaces of a depth side by side, in three dimensions and from above."""
    members = [one for one in landscape().members if one.name.startswith(f"{depth} ")]
    named = [(one.title, one.surface) for one in members if one.surface is not None]
    return [surface_plot("landscape", named), contour_plot("landscape", named)]
