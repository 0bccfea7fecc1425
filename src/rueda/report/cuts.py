"""Cuts of a landscape on the page: loss and error along lines, and from one model to another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rueda.records.landscape import Interpolation, Lines, Member, Sheet
from rueda.report.figures.parts import colour
from rueda.report.plot import Plot
from rueda.report.relief import SPLITS, rounded
from rueda.terminal.words import with_workers


def cuts(members: Sequence[Member]) -> list[Plot]:
    """Compare models along one dimension: each line of a member thin, their mean would hide the sharpest."""
    with_lines = [
        (with_workers(member.name, member.workers, member.rehearsed), member.lines)
        for member in members if member.lines is not None
    ]  # fmt: skip
    if not with_lines:
        return []
    plots = []
    for measure in ("loss", "error"):
        traces = []
        for index, (name, lines) in enumerate(with_lines):
            traces += _line_traces(lines, measure, name, colour(index))
        if traces:
            yaxis: dict[str, Any] = {"title": measure}
            yaxis |= {"type": "log"} if measure == "loss" else {"tickformat": ".0%", "rangemode": "tozero"}
            lines = with_lines[0][1]
            plots.append(
                Plot(
                    name=f"lines-{measure}", title=f"The {measure} along random directions", traces=traces, half=True,
                    layout={"xaxis": "alpha", "yaxis": yaxis, "showlegend": True},
                    note=f"Solid: training examples; dashed: test examples. Directions: {lines.directions}.",
                )
            )  # fmt: skip
    return plots


def _line_traces(lines: Lines, measure: str, name: str, hue: str) -> list[dict[str, Any]]:
    traces = []
    for sheet in lines.sheets:
        rows = sheet.loss if measure == "loss" else sheet.error
        for index, row in enumerate(rows or ()):
            traces.append(
                {
                    "type": "scatter", "mode": "lines", "x": rounded(lines.alphas), "y": rounded(row),
                    "line": {"color": hue, "width": 2, "dash": _dash(sheet)},
                    "name": f"{name}, {SPLITS.get(sheet.split, sheet.split)}", "showlegend": index == 0,
                    "legendgroup": f"{name}-{sheet.split}",
                    "hovertemplate": f"alpha %{{x:.3g}}: {measure} %{{y:.4g}}",
                }
            )  # fmt: skip
    return traces


def interpolations(members: Sequence[Member]) -> list[Plot]:
    """Draw loss and accuracy from one model to another, as Keskar et al. do: two scales in one figure."""
    lines = [member.interpolation for member in members if member.interpolation is not None]
    return [_interpolation(line, "" if index == 1 else f"-{index}") for index, line in enumerate(lines, 1)]


def _interpolation(line: Interpolation, number: str) -> Plot:
    traces = []
    for sheet in line.sheets:
        words = SPLITS.get(sheet.split, sheet.split)
        shared: dict[str, Any] = {"type": "scatter", "mode": "lines", "x": rounded(line.alphas)}
        traces.append(
            {**shared, "y": rounded(sheet.loss[0]), "name": f"{words} loss",
             "line": {"color": "@blue", "width": 2, "dash": _dash(sheet)},
             "hovertemplate": "alpha %{x:.3g}: loss %{y:.4g}"}
        )  # fmt: skip
        if sheet.error is not None:
            traces.append(
                {**shared, "y": rounded([1 - value for value in sheet.error[0]]), "name": f"{words} accuracy",
                 "yaxis": "y2", "line": {"color": "@red", "width": 2, "dash": _dash(sheet)},
                 "hovertemplate": "alpha %{x:.3g}: accuracy %{y:.1%}"}
            )  # fmt: skip
    ends = [
        {"type": "line", "x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1,
         "line": {"color": "@muted", "width": 1.2, "dash": "dash"}}
        for at in (0, 1)
    ]  # fmt: skip
    names = [
        {"x": at, "y": 1, "yref": "paper", "yanchor": "bottom", "showarrow": False, "text": text,
         "font": {"color": "@muted", "size": 12}}
        for at, text in ((0, line.start), (1, line.end))
    ]  # fmt: skip
    layout = {
        "xaxis": "alpha", "yaxis": {"title": "loss", "type": "log"}, "shapes": ends, "annotations": names,
        "yaxis2": {"title": "accuracy", "overlaying": "y", "side": "right", "tickformat": ".0%", "range": [0, 1.02],
                   "showgrid": False},
        "showlegend": True, "margin": {"l": 56, "r": 56, "t": 32, "b": 48},
    }  # fmt: skip
    note = f"Weights (1 - alpha) {line.start} + alpha {line.end}; batch-norm statistics: {line.batch_norm}."
    return Plot(
        name=f"interpolation{number}", title=f"From {line.start} to {line.end}", traces=traces, layout=layout,
        note=note, height=420,
    )  # fmt: skip


def _dash(sheet: Sheet) -> str:
    return "solid" if sheet.split == "train" else "dash"
