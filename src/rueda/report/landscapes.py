"""Landscapes on the page: surfaces in three dimensions and from above, lines, interpolations, the training path.

Several members stand side by side, with one scale for all: flat and sharp can be seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from rueda.records.landscape import Landscape, Member
from rueda.report.cuts import cuts, interpolations
from rueda.report.model import Section, Table, short
from rueda.report.relief import SPLITS, contours, relief
from rueda.terminal.numbers import count, digits, percent
from rueda.terminal.words import with_workers


def read(place: Path) -> Section:
    """Read a landscape: the file, or ``landscape.json`` of a folder."""
    return to_section(Landscape.load(place))


def to_section(landscape: Landscape) -> Section:
    """Draw one landscape, or several side by side."""
    members = landscape.members
    title = f"The landscape of {_name(members[0])}" if len(members) == 1 else f"Landscapes of {landscape.task}"
    section = Section(title=title, task=landscape.task, told=_told(landscape))
    surfaces = [(_name(member), member.surface) for member in members if member.surface is not None]
    if surfaces:
        section.tables.append(_table(members))
        section.plots += [relief("landscape", surfaces), contours("landscape", surfaces)]
    paths = [(_name(member), member.path) for member in members if member.path is not None]
    if paths:
        section.plots += [relief("path", paths), contours("path", paths)]
    section.plots += cuts(members)
    section.plots += interpolations(members)
    section.environments.append({**landscape.environment, "command": landscape.command})
    return section


def _told(landscape: Landscape) -> list[str]:
    surfaces = [(_name(member), member.surface) for member in landscape.members if member.surface is not None]
    told = []
    for name, surface in surfaces:
        sheet = surface.sheets[0]
        centre, edge = surface.centre(sheet.loss), surface.edge(sheet.loss)
        told.append(
            f"{name}: {SPLITS.get(sheet.split, sheet.split)} loss {digits(centre)} at the model, {_high(edge)} at "
            "the edge of the surface (median)."
        )
    for member in landscape.members:
        if member.path is not None and member.path.trail is not None:
            share = sum(member.path.trail.explained)
            told.append(
                f"The plane of its path holds {percent(share)} of the variance of the checkpoints of {_name(member)}."
            )
    return told or [f"{len(landscape.members)} models of {landscape.task} were examined."]


def _name(member: Member) -> str:
    return with_workers(member.name, member.workers, member.rehearsed)


def _high(value: float) -> str:
    return digits(value) if math.isfinite(value) else "beyond all numbers"


def _table(members: Sequence[Member]) -> Table:
    rows: list[list[str | tuple[float | None, str]]] = []
    for member in members:
        for sheet in member.surface.sheets if member.surface is not None else ():
            surface = member.surface
            assert surface is not None
            row: list[str | tuple[float | None, str]] = [_name(member), SPLITS.get(sheet.split, sheet.split)]
            for value in (surface.centre(sheet.loss), surface.edge(sheet.loss)):
                row.append((short(value) if math.isfinite(value) else None, _high(value)))
            for part in (surface.centre, surface.edge):
                error = None if sheet.error is None else part(sheet.error)
                row.append((error, percent(error)))
            row.append((member.step, count(member.step)))
            rows.append(row)
    heads = ["model", "examples", "loss", "loss at the edge", "error", "error at the edge", "updates"]
    first = next(member for member in members if member.surface is not None)
    assert first.surface is not None
    note = (
        f"Edge: median over the rim of the surface. Directions: {first.surface.directions}; batch-norm statistics: "
        f"{first.surface.batch_norm}; {count(first.num_examples)} examples of each split, "
        f"{count(first.num_parameters)} parameters."
    )
    return Table(title="Flat or sharp", heads=heads, rows=rows, note=note)
