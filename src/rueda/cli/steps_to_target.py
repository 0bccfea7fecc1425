"""``rueda steps-to-target``: updates to an accuracy against the batch size.

The twin of :func:`rueda.study.study_steps_to_target`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rueda.cli.numbers import whole_numbers
from rueda.cli.options import BatchSizes, Epochs, PrintFile, Settings, StudyFolder, TaskName
from rueda.cli.stopping import resumable
from rueda.cli.study_output import default_folder, print_result
from rueda.terminal.numbers import NONE

if TYPE_CHECKING:
    from rueda.records.steps_to_target import BatchPoint

EPILOG = "Example: rueda steps-to-target glyphs-cnn --target-accuracy 0.85 --batches 16,64,256"


def steps_to_target(
    task: TaskName,
    target_accuracy: Annotated[float, typer.Option(help="Test accuracy to reach, between 0 and 1.")] = 0.85,
    batches: BatchSizes = None,
    seeds: Annotated[int, typer.Option(help="How many times each batch size is trained.")] = 1,
    epochs: Epochs = None,
    settings: Settings = None,
    folder: StudyFolder = None,
    as_json: PrintFile = False,
) -> None:
    """Count the updates to a test accuracy at each batch size, and fit the critical batch."""
    sizes = None if batches is None else whole_numbers("--batches", batches, "1,8,64")
    folder = folder or default_folder(task)
    with resumable():
        from rueda.study.steps_to_target import study_steps_to_target

        found = study_steps_to_target(
            task, target_accuracy=target_accuracy, batches=sizes, seeds=seeds, epochs=epochs,
            settings=settings or [], folder=folder, say=lambda line: None if as_json else typer.echo(line, err=True),
        )  # fmt: skip
    curve = found.fit
    summary = "fewer than three batch sizes reached the target with every seed: no curve"
    if curve is not None:
        summary = (
            f"critical batch {curve.critical_batch:,.0f} (90 % interval {curve.interval[0]:,.0f} to "
            f"{curve.interval[1]:,.0f}); at "
            f"least {curve.smallest_updates:,.0f} updates, at least {curve.smallest_examples:,.0f} examples"
        )
    print_result(
        folder / "steps.json",
        as_json,
        title=f"{found.task}: to test accuracy {100 * target_accuracy:g} %",
        headings=["batch", "best rate", "updates", "examples", "fitted updates", "regime"],
        rows=[
            [
                f"{one.batch:,}",
                NONE if one.rate is None else f"{one.rate:.4g}",
                NONE if one.updates is None else f"{one.updates:,.0f}{_some_seeds(one)}",
                NONE if one.examples is None else f"{one.examples:,.0f}",
                "" if curve is None else f"{curve.updates(one.batch):,.0f}",
                "" if curve is None else curve.regime(one.batch),
            ]
            for one in found.points
        ],
        summary=summary,
    )


def _some_seeds(point: BatchPoint) -> str:
    return "" if point.complete else f" ({len(point.seeds)} of {point.num_seeds} seeds)"
