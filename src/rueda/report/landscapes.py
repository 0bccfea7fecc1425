"""Landscapes on the page: surfaces in three dimensions and from above, lines, interpolations, the training path.

Several members stand side by side, with one scale for all: flat and sharp can be seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from rueda.records.landscape import Landscape, Member, Surface
from rueda.report.cuts import cuts, interpolations
from rueda.report.model import Cell, Section, Table, short
from rueda.report.relief import contours, relief, split_name
from rueda.terminal.numbers import count, digits, percent
from rueda.terminal.words import with_workers


def read(place: Path) -> Section:
    """Read a landscape: the file, or ``landscape.json`` of a folder."""
    return to_section(Landscape.load(place))


def to_section(landscape: Landscape) -> Section:
    """Draw one landscape, or several side by side."""
    members = landscape.members
    title = f"The landscape of {_name(members[0])}" if len(members) == 1 else f"Landscapes of {landscape.task}"
    section = Section(title=title, task=landscape.task)
    surfaces = [(member, member.surface) for member in members if member.surface is not None]
    if surfaces:
        section.told += [_at_the_model(member, surface) for member, surface in surfaces]
        section.tables.append(_table(surfaces))
        named = [(_name(member), surface) for member, surface in surfaces]
        section.plots += [relief("landscape", named), contours("landscape", named)]
    paths = [(_name(member), member.path) for member in members if member.path is not None]
    if paths:
        section.told += [
            f"The plane of its path holds {percent(sum(path.trail.explained))} of the variance of the checkpoints of "
            f"{name}."
            for name, path in paths if path.trail is not None
        ]  # fmt: skip
        section.plots += [relief("path", paths), contours("path", paths)]
    section.told = section.told or [f"{len(members)} models of {landscape.task} were examined."]
    section.plots += [*cuts(members), *interpolations(members)]
    section.environments.append({**landscape.environment, "command": landscape.command})
    return section


def _at_the_model(member: Member, surface: Surface) -> str:
    sheet = surface.sheets[0]
    centre, edge = surface.centre(sheet.loss), surface.edge(sheet.loss)
    return (
        f"{_name(member)}: {split_name(sheet.split)} loss {digits(centre)} at the model, {_high(edge)} at "
        "the edge of the surface (median)."
    )


def _name(member: Member) -> str:
    return with_workers(member.name, member.workers, member.rehearsed)


def _high(value: float) -> str:
    return digits(value) if math.isfinite(value) else "beyond all numbers"


def _table(surfaces: Sequence[tuple[Member, Surface]]) -> Table:
    rows: list[list[Cell]] = []
    for member, surface in surfaces:
        for sheet in surface.sheets:
            row: list[Cell] = [_name(member), split_name(sheet.split)]
            for value in (surface.centre(sheet.loss), surface.edge(sheet.loss)):
                row.append((short(value) if math.isfinite(value) else None, _high(value)))
            for part in (surface.centre, surface.edge):
                error = None if sheet.error is None else part(sheet.error)
                row.append((error, percent(error)))
            rows.append([*row, (member.step, count(member.step))])
    heads = ["model", "examples", "loss", "loss at the edge", "error", "error at the edge", "updates"]
    first, surface = surfaces[0]
    note = (
        f"Edge: median over the rim of the surface. Directions: {surface.directions}; batch-norm statistics: "
        f"{surface.batch_norm}; {count(first.num_examples)} examples of each split, "
        f"{count(first.num_parameters)} parameters."
    )
    return Table(title="Flat or sharp", heads=heads, rows=rows, note=note)
