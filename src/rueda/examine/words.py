"""What was found, in a line a model."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

from rueda.records import curvature, landscape
from rueda.records.curvature import Curvature
from rueda.records.landscape import Landscape
from rueda.terminal.words import with_workers


def summary(folder: Path) -> list[str]:
    """Tell what the records of a folder say."""
    told: list[str] = []
    if (folder / landscape.FILE).is_file():
        told += [line for member in Landscape.load(folder).members for line in _seen(member)]
    if (folder / curvature.FILE).is_file():
        members = Curvature.load(folder).members
        count = Counter(member.name for member in members)
        for member in members:
            name = with_workers(member.name, member.workers, member.rehearsed)
            told += _felt(member, name if count[member.name] == 1 else f"{name}, seed {member.seed}")
    return told


def _seen(member: landscape.Member) -> list[str]:
    told, who = [], with_workers(member.name, member.workers, member.rehearsed)
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


def _felt(member: curvature.Member, name: str) -> list[str]:
    told = []
    found = member.hessian
    if found is not None:
        top = found.eigenvalues[0]
        trace = "" if found.trace is None else f", trace {found.trace:.4g} ± {found.trace_error or 0:.2g}"
        doubt = "" if found.converged else " (not converged)"
        told.append(f"{name}: top eigenvalue {top.value:.5g} ± {top.error:.1g}{doubt}{trace}")
    if member.sharpness is not None:
        parts = [f"{one.kind} at {one.radius:g}: {one.value:.4g}" for one in member.sharpness.measures]
        told.append(f"{name}: sharpness, {', '.join(parts)}")
    return told
