"""``rueda throughput``: images/s against the local batch; the twin of :func:`rueda.study.study_throughput`."""

from __future__ import annotations

from rueda.cli.numbers import whole_numbers
from rueda.cli.options import BatchSizes, PrintFile, Settings, StudyFolder, TaskName
from rueda.cli.stopping import resumable
from rueda.cli.study_output import default_folder, print_result

EPILOG = "Example: rueda throughput glyphs-cnn --batches 16,64,256"


def throughput(
    task: TaskName,
    batches: BatchSizes = None,
    settings: Settings = None,
    folder: StudyFolder = None,
    as_json: PrintFile = False,
) -> None:
    """Measure the images/s of one worker against its local batch, and where they saturate."""
    sizes = None if batches is None else whole_numbers("--batches", batches, "1,8,64")
    folder = folder or default_folder(task)
    with resumable():
        from rueda.study.throughput import study_throughput

        found = study_throughput(task, batches=sizes, settings=settings or [], folder=folder, progress=not as_json)
    summary = f"not saturated up to batch {found.points[-1].batch:,}: a larger one may be faster"
    if found.saturates_at is not None:
        summary = f"saturates at batch {found.saturates_at:,}: the smallest with 95 % of the best"
    print_result(
        folder / "throughput.json",
        as_json,
        title=f"{found.task}, one worker on this machine",
        headings=["local batch", "images/s", "ms an update"],
        rows=[
            [f"{one.batch:,}", f"{one.images_per_second:,.0f}", f"{one.milliseconds_per_update:,.2f}"]
            for one in found.points
        ],
        summary=summary,
    )
