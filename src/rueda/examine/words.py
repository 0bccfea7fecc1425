"""The terminal's summary of an examination: a line for each result of each model."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

from rueda.records import curvature, landscape
from rueda.records.curvature import Curvature
from rueda.records.landscape import Landscape


def summary(folder: Path) -> list[str]:
    """Return the lines that summarise the records of a folder."""
    told: list[str] = []
    if (folder / landscape.Landscape.FILE).is_file():
        told += [line for member in Landscape.load(folder).members for line in _landscape_lines(member)]
    if (folder / curvature.Curvature.FILE).is_file():
        members = Curvature.load(folder).members
        count = Counter(member.name for member in members)
        for member in members:
            seed = "" if count[member.name] == 1 else f", seed {member.seed}"
            told += _curvature_lines(member, member.title + seed)
    return told


def _landscape_lines(member: landscape.ModelLandscape) -> list[str]:
    told, who = [], member.title
    for name, surface in (("surface", member.surface), ("path", member.path)):
        if surface is not None:
            sheet = surface.sheets[0]
            told.append(
                f"{who}: {name} of {len(surface.x)} x {len(surface.y)} points, {sheet.split} loss "
                f"{surface.centre(sheet.loss):.4g} at the centre, {surface.edge(sheet.loss):.4g} on the edge (median)"
            )
    for name, line in (("lines", member.lines), ("interpolation", member.interpolation)):
        if line is not None:
            losses = [value for row in line.sheets[0].loss for value in row if math.isfinite(value)]
            told.append(
                f"{who}: {name} of {len(line.alphas)} points, {line.sheets[0].split} loss from "
                f"{min(losses, default=math.nan):.4g} to {max(losses, default=math.nan):.4g}"
            )
    return told


def _curvature_lines(member: curvature.ModelCurvature, name: str) -> list[str]:
    told = []
    found = member.hessian
    if found is not None:
        top = found.eigenvalues[0]
        doubt = "" if found.has_converged else " (not converged)"
        told.append(
            f"{name}: top eigenvalue {top.value:.5g}{doubt}"
            + _margins(found, top.sampling_error, top.error, "numerically")
            + ("" if found.trace is None else f", trace {found.trace:.4g}")
            + _margins(found, found.trace_sampling_error, found.trace_margin, "random vectors")
        )
    if member.sharpness is not None:
        parts = [f"{one.kind} at {one.radius:g}: {one.value:.4g}" for one in member.sharpness.measures]
        told.append(f"{name}: sharpness, {', '.join(parts)}")
    return told


def _margins(found: curvature.HessianResult, sampling_error: float | None, other: float | None, cause: str) -> str:
    """Write the 90 % margin that comes from which examples were drawn, and apart from it the one of another cause."""
    sampled = found.sampling_margin(sampling_error)
    if other is None:
        return ""
    if sampled is None:
        return f" ± {other:.1g} ({cause}; which examples were drawn is left out)"
    return f" ± {sampled:.2g} (which {found.examples:,} examples were drawn, 90 %; {cause} ± {other:.1g})"
