"""``rueda throughput``: measures throughput against the local batch, as :func:`rueda.study.study_throughput` does."""

from __future__ import annotations

from pathlib import Path

from rueda.cli.numbers import whole_numbers
from rueda.cli.options import BatchSizes, PrintFile, Settings, StudyFolder, TaskName
from rueda.cli.stopping import resumable
from rueda.cli.study_output import default_folder, show_result
from rueda.files.start_directory import located

EPILOG = "Example: rueda throughput glyphs-cnn --batches 16,64,256"


def throughput(
    task: TaskName,
    batches: BatchSizes = None,
    settings: Settings = None,
    folder: StudyFolder = None,
    as_json: PrintFile = False,
) -> None:
    """Measure throughput against the local batch.

    The result names the local batch from which on one worker's throughput no longer grows.
    """
    sizes = None if batches is None else whole_numbers("--batches", batches, "1,8,64")
    folder, start = folder or default_folder(task), Path.cwd()
    with resumable():
        from rueda.study.throughput import study_throughput

        found = study_throughput(task, batches=sizes, settings=settings or [], folder=folder, progress=not as_json)
    summary = f"not saturated up to batch {found.points[-1].batch:,}: a larger batch may be faster"
    if found.saturates_at is not None:
        summary = (
            f"saturates at batch {found.saturates_at:,}: the smallest batch with 95 % of the highest {found.unit}/s"
        )
    from rueda.report.study_tables import throughput_table

    table = throughput_table(found).on_terminal(f"{found.task}, one worker on this machine")
    show_result(found, located(folder, start), as_json, table, summary)
