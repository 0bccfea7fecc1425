"""Flat and sharp minima: curvature and accuracy of stored networks, and a line between two networks trained here."""

from __future__ import annotations

from functools import cache

from rueda.labs import stored
from rueda.labs.lab_3.small_task import WORKERS, recipe, small_glyphs, trained_model
from rueda.labs.showing import Drawn, Text
from rueda.records.curvature import Curvature, ModelCurvature
from rueda.records.landscape import ModelLandscape
from rueda.records.study import mean_and_spread
from rueda.report.figures.loss_lines import interpolation_plots
from rueda.report.figures.parts import colour, error_bars, log_axis, one_two_five
from rueda.report.plot import Plot

TASKS = {"Fashion-MNIST": "curvature-fashion-mnist", "CIFAR-10": "curvature-cifar10"}


def curvature_figure(task: str) -> list[Drawn]:
    """Draw the test accuracy of each stored network against its largest Hessian eigenvalue, means over the seeds."""
    found = stored.load(Curvature, TASKS[task])
    groups: dict[str, list[ModelCurvature]] = {}
    for member in found.members:
        groups.setdefault(member.title.replace(", rehearsed", ""), []).append(member)
    plot = Plot(
        name="sharp-or-flat", title=f"Sharper to the right, better at the top: {task}",
        traces=[_dot(name, members, number) for number, (name, members) in enumerate(groups.items())],
        layout={
            "xaxis": log_axis("largest eigenvalue of the Hessian", one_two_five(1, 2e4, decades=5)[::2]),
            "yaxis": {"title": "test accuracy", "tickformat": ".0%"}, "showlegend": True,
        },
        note="Mean and standard deviation over the seeds. If sharp minima were bad, the dots would fall to the right.",
        height=420, narrow_height=520,
    )  # fmt: skip
    return [Text(stored.line(TASKS[task])), plot]


def _dot(name: str, members: list[ModelCurvature], number: int) -> dict[str, object]:
    sharpness = mean_and_spread([member.hessian.largest for member in members if member.hessian is not None])
    accuracy = mean_and_spread([member.test_accuracy for member in members if member.test_accuracy is not None])
    hue, symbol = colour(number), "square" if "batch-norm" in name else "circle"
    return {
        "type": "scatter", "mode": "markers", "name": name, "x": [sharpness[0]], "y": [accuracy[0]],
        "marker": {"size": 12, "color": hue, "symbol": symbol},
        "error_x": error_bars([sharpness[1] or 0.0], hue, thickness=1.2),
        "error_y": error_bars([accuracy[1] or 0.0], hue, thickness=1.2),
        "hovertemplate": "%{fullData.name}: eigenvalue %{x:,.3g}, accuracy %{y:.1%}",
    }  # fmt: skip


@cache
def line_figure(large: str) -> Plot:
    """Draw loss and accuracy on the line from one worker's network to that of eight workers, as Keskar et al. do."""
    from rueda.examine.landscape.interpolation import interpolate
    from rueda.examine.loading import TrainedModel

    small = TrainedModel(
        name="one worker", task=small_glyphs(), recipe=recipe("one-worker"),
        model=trained_model(recipe("one-worker"), "one-worker"), step=None, run=None,
    )  # fmt: skip
    other = trained_model(recipe(large), large)
    found = interpolate(
        small.objectives(num_examples=500), other.state_dict(), names=("one worker", f"{WORKERS} workers")
    )
    return interpolation_plots(
        [ModelLandscape(name="small-glyphs", weights="", num_parameters=0, num_examples=500, interpolation=found)]
    )[0]
