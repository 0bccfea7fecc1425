"""Loss and error along random directions, and from one model to another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rueda.records.landscape import Interpolation, Lines, ModelLandscape, Sheet
from rueda.report.figures.loss_surfaces import rounded, split_name
from rueda.report.figures.parts import above, colour, curve, upright
from rueda.report.plot import Plot


def line_plots(members: Sequence[ModelLandscape]) -> list[Plot]:
    """Draw the loss, and the error, along each direction of each model; a mean would hide the sharpest direction."""
    with_lines = [(member.title, member.lines) for member in members if member.lines is not None]
    plots = []
    for measure in ("loss", "error"):
        traces = [
            trace for index, (name, lines) in enumerate(with_lines)
            for trace in _line_traces(lines, measure, name, colour(index))
        ]  # fmt: skip
        if traces:
            yaxis: dict[str, Any] = {"title": measure}
            yaxis |= {"type": "log"} if measure == "loss" else {"tickformat": ".0%", "rangemode": "tozero"}
            directions = with_lines[0][1].directions
            plots.append(
                Plot(
                    name=f"lines-{measure}", title=f"The {measure} along random directions", traces=traces, half=True,
                    layout={"xaxis": "alpha", "yaxis": yaxis, "showlegend": True},
                    note=f"Solid: training examples; dashed: test examples. Directions: {directions}.",
                )
            )  # fmt: skip
    return plots


def _line_traces(lines: Lines, measure: str, name: str, hue: str) -> list[dict[str, Any]]:
    return [
        curve(
            rounded(lines.alphas), rounded(row), hue, dash=_dash(sheet), name=f"{name}, {split_name(sheet.split)}",
            showlegend=index == 0, legendgroup=f"{name}-{sheet.split}",
            hovertemplate=f"alpha %{{x:.3g}}: {measure} %{{y:.4g}}",
        )
        for sheet in lines.sheets
        for index, row in enumerate((sheet.loss if measure == "loss" else sheet.error) or ())
    ]  # fmt: skip


def interpolation_plots(members: Sequence[ModelLandscape]) -> list[Plot]:
    """Draw loss and accuracy from one model to another on two axes, as Keskar et al. 2017 do."""
    lines = [member.interpolation for member in members if member.interpolation is not None]
    return [_interpolation(line, "" if index == 1 else f"-{index}") for index, line in enumerate(lines, 1)]


def _interpolation(line: Interpolation, number: str) -> Plot:
    traces, x = [], rounded(line.alphas)
    for sheet in line.sheets:
        words, dash = split_name(sheet.split), _dash(sheet)
        told = "alpha %{x:.3g}: loss %{y:.4g}"
        traces.append(curve(x, rounded(sheet.loss[0]), "@blue", dash=dash, name=f"{words} loss", hovertemplate=told))
        if sheet.error is not None:
            right = rounded([1 - value for value in sheet.error[0]])
            told = "alpha %{x:.3g}: accuracy %{y:.1%}"
            name = f"{words} accuracy"
            traces.append(curve(x, right, "@red", dash=dash, name=name, yaxis="y2", hovertemplate=told))
    layout = {
        "xaxis": "alpha", "yaxis": {"title": "loss", "type": "log"},
        "shapes": [upright(at, "@muted", 1.2) for at in (0, 1)],
        "annotations": [above(0, line.start), above(1, line.end)],
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
