"""``rueda steps-to-target``: counts the updates to a target; see :func:`rueda.study.study_steps_to_target`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rueda.cli.numbers import whole_numbers
from rueda.cli.options import BatchSizes, PrintFile, Settings, StudyFolder, TargetMetric, TargetValue, TaskName
from rueda.cli.stopping import resumable
from rueda.cli.study_output import default_folder, show_result
from rueda.files.start_directory import located

EPILOG = "Example: rueda steps-to-target glyphs-cnn --target-accuracy 0.85"


def steps_to_target(
    task: TaskName,
    target_accuracy: Annotated[
        float | None, typer.Option(help="Accuracy to reach, between 0 and 1; by default 0.85.")
    ] = None,
    target: TargetValue = None,
    target_metric: TargetMetric = None,
    batches: BatchSizes = None,
    seeds: Annotated[int, typer.Option(help="Trainings at each batch size.")] = 1,
    epochs: Annotated[
        int | None, typer.Option(help="Limit of each training in epochs; by default 8 times the recipe's.")
    ] = None,
    settings: Settings = None,
    folder: StudyFolder = None,
    as_json: PrintFile = False,
) -> None:
    """Count the updates to an accuracy.

    It is that on validation data, or on test data where a task has none. A target may be a value of any other metric,
    too. The learning rate is tuned for each batch size; the critical batch size is fitted to the counts.
    """
    sizes = None if batches is None else whole_numbers("--batches", batches, "1,8,64")
    if target is None and target_metric is None and target_accuracy is None:
        target_accuracy = 0.85
    folder, start = folder or default_folder(task), Path.cwd()
    with resumable():
        from rueda.study.steps_to_target import study_steps_to_target

        found = study_steps_to_target(
            task, target_accuracy=target_accuracy, target=target, target_metric=target_metric, batches=sizes,
            seeds=seeds, epochs=epochs, settings=settings or [], folder=folder,
            say=lambda line: None if as_json else typer.echo(line, err=True),
        )  # fmt: skip
    curve = found.fit
    summary = "fewer than three batch sizes reached the target with every seed: no curve"
    if curve is not None:
        summary = (
            f"critical batch {curve.critical_batch:,.0f} (90 % interval: {curve.interval_text}); at least "
            f"{curve.smallest_updates:,.0f} updates, at least {curve.smallest_examples:,.0f} examples"
        )
    from rueda.report.study_tables import steps_table
    from rueda.terminal.metrics import write_target

    target_text = write_target(found.metric, found.value, found.data)
    table = steps_table(found).on_terminal(f"{found.task}: to {target_text}")
    show_result(found, located(folder, start), as_json, table, summary)
