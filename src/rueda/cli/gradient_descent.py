"""``rueda gradient-descent``: fits a line at several batch sizes; see :func:`rueda.study.study_gradient_descent`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rueda.cli.numbers import whole_numbers
from rueda.cli.options import BatchSizes, PrintFile
from rueda.cli.stopping import resumable
from rueda.cli.study_output import show_result

EPILOG = "Example: rueda gradient-descent --batches 1,10,100 --seeds 50"


def gradient_descent(
    batches: BatchSizes = None,
    seeds: Annotated[int, typer.Option(help="Trainings at each batch size.")] = 200,
    rate: Annotated[float, typer.Option(help="Learning rate.")] = 1e-3,
    noise: Annotated[float, typer.Option(help="Standard deviation of the noise within the slope.")] = 1.0,
    folder: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("runs/study-linear"),
    as_json: PrintFile = False,
) -> None:
    """Show gradient descent at several batch sizes.

    The model has two parameters, y = w x + b, and trains in milliseconds.
    """
    sizes = None if batches is None else whole_numbers("--batches", batches, "1,8,64")
    with resumable():
        from rueda.study.gradient_descent import BATCHES, study_gradient_descent

        found = study_gradient_descent(batches=sizes or BATCHES, seeds=seeds, rate=rate, noise=noise, folder=folder)
    from rueda.report.study_tables import descent_table

    table = descent_table(found).on_terminal(f"y = w x + b, mean over {seeds} seeds")
    best = f"the best loss is about {98 * noise**2:.3g}"
    show_result(found, folder, as_json, table, f"true: w = 10, b = 2; {best}")
