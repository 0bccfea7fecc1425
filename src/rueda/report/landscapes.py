"""The reader of ``landscape.json``: loss surfaces and contours, lines, interpolations, training paths.

Several models stand side by side on one scale, so that flat and sharp minima can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rueda.records.landscape import Landscape, ModelLandscape, Surface
from rueda.report.figures.loss_lines import interpolation_plots, line_plots
from rueda.report.figures.loss_surfaces import contour_plot, split_name, surface_plot
from rueda.report.model import Cell, Section, Table, short
from rueda.terminal.numbers import count, digits, percent


def to_section(landscape: Landscape) -> Section:
    """Return the section of one landscape, or of several side by side."""
    members = landscape.members
    title = f"The landscape of {members[0].title}" if len(members) == 1 else f"Landscapes of {landscape.task}"
    section = Section(title=title, task=landscape.task)
    surfaces = [(member, member.surface) for member in members if member.surface is not None]
    if surfaces:
        section.told += [_at_the_model(member, surface) for member, surface in surfaces]
        section.tables.append(_table(surfaces))
        named = [(member.title, surface) for member, surface in surfaces]
        section.plots += [surface_plot("landscape", named), contour_plot("landscape", named)]
    paths = [(member.title, member.path) for member in members if member.path is not None]
    if paths:
        section.told += [
            f"The plane of its path holds {percent(sum(path.trail.explained))} of the variance of the checkpoints of "
            f"{name}."
            for name, path in paths if path.trail is not None
        ]  # fmt: skip
        section.plots += [surface_plot("path", paths), contour_plot("path", paths)]
    section.told = section.told or [f"{len(members)} models of {landscape.task} were examined."]
    section.plots += [*line_plots(members), *interpolation_plots(members)]
    return section


def _at_the_model(member: ModelLandscape, surface: Surface) -> str:
    sheet = surface.sheets[0]
    centre, edge = surface.centre(sheet.loss), surface.edge(sheet.loss)
    return (
        f"{member.title}: {split_name(sheet.split)} loss {digits(centre)} at the model, {_high(edge)} at "
        "the edge of the surface (median)."
    )


def _high(value: float) -> str:
    return digits(value) if math.isfinite(value) else "infinite"


def _table(surfaces: Sequence[tuple[ModelLandscape, Surface]]) -> Table:
    rows: list[list[Cell]] = []
    for member, surface in surfaces:
        for sheet in surface.sheets:
            row: list[Cell] = [member.title, split_name(sheet.split)]
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
