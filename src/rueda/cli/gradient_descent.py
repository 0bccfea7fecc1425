"""``rueda gradient-descent``: the linear model against the batch size.

The twin of :func:`rueda.study.study_gradient_descent`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rueda.cli.numbers import whole_numbers
from rueda.cli.options import BatchSizes, PrintFile
from rueda.cli.stopping import resumable
from rueda.cli.study_output import print_result
from rueda.terminal.numbers import with_spread

EPILOG = "Example: rueda gradient-descent --batches 1,10,100 --seeds 50"


def gradient_descent(
    batches: BatchSizes = None,
    seeds: Annotated[int, typer.Option(help="How many times each batch size is trained.")] = 200,
    folder: Annotated[Path, typer.Option(help="Where to write the result and its page.")] = Path("runs/study-linear"),
    as_json: PrintFile = False,
) -> None:
    """Show what the batch size does to gradient descent on a model of two parameters, y = w x + b."""
    sizes = None if batches is None else whole_numbers("--batches", batches, "1,8,64")
    with resumable():
        from rueda.study.gradient_descent import BATCHES, study_gradient_descent

        found = study_gradient_descent(batches=sizes or BATCHES, seeds=seeds, folder=folder)
    print_result(
        folder / "gd.json",
        as_json,
        title=f"y = w x + b, mean over {seeds} seeds",
        headings=["batch", "epochs", "updates", "w", "b", "loss"],
        rows=[
            [
                f"{row.batch}", f"{row.epochs:.1f}", f"{row.updates:.0f}", with_spread(row.w, row.w_spread),
                with_spread(row.b, row.b_spread), f"{row.loss:.1f}",
            ]
            for row in found.rows
        ],
        summary="true: w = 10, b = 2; the best loss is about 98",
    )  # fmt: skip
