"""Options that several commands share, with one help text each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rueda.cli import completion

TASK_HELP = "A built-in task, or a Python file that defines `task`."
TaskName = Annotated[str, typer.Argument(help=TASK_HELP, autocompletion=completion.tasks)]
ClusterName = typer.Option(
    help="A TOML file, or a shipped cluster: see `rueda plan --cluster list`.", autocompletion=completion.clusters
)
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Set a field of the recipe; may be repeated.",
        autocompletion=completion.settings,
    ),
]


def _set_grace(seconds: float | None) -> float | None:
    """Set ``RUEDA_GRACE``, which the processes that the command starts inherit."""
    import os

    from rueda.world.signals import grace_seconds

    if seconds is not None:
        grace_seconds({"RUEDA_GRACE": str(seconds)})  # refuses what is not a time
        os.environ["RUEDA_GRACE"] = str(seconds)
    return seconds


Grace = Annotated[
    float | None,
    typer.Option(
        "--grace",
        metavar="SECONDS",
        help="Time to save after a signal, before workers are killed; by default RUEDA_GRACE, else 30.",
        callback=_set_grace,
    ),
]
TargetValue = Annotated[
    float | None,
    typer.Option("--target", metavar="VALUE", help="Value of the primary metric to reach, or of --target-metric."),
]
TargetMetric = Annotated[
    str | None, typer.Option(metavar="NAME", help="The metric that --target is about, such as loss.")
]
Epochs = Annotated[int | None, typer.Option(help="Passes over the training data.")]
BatchSizes = Annotated[str | None, typer.Option(help="Batch sizes, separated by commas.")]
Jobs = Annotated[int, typer.Option(help="Trainings that run at the same time.")]
StudyFolder = Annotated[Path | None, typer.Option(help="Result folder; by default runs/study-TASK.")]
StallWarning = Annotated[
    float | None,
    typer.Option("--stall-warning", metavar="SECONDS", help="Report a collective that takes longer (60 s; 0: never)."),
]
StallTimeout = Annotated[
    float | None,
    typer.Option(
        "--stall-timeout", metavar="SECONDS", help="End the job if a collective takes longer (1800 s; 0: never)."
    ),
]
StallDump = Annotated[
    Path | None,
    typer.Option(
        "--stall-dump", metavar="FOLDER", help="Write torch's flight recorder of every rank here when a job stalls."
    ),
]
PrintFile = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
PngFolder = Annotated[
    Path | None, typer.Option("--png", metavar="DIR", help="Also write the figures as PNG here (needs Chromium).")
]


def folder_of(text: str | Path) -> Path:
    """Convert an option to the path of a folder; an empty one, such as an unset shell variable, is refused."""
    from rueda.errors import RunError

    if not str(text).strip():
        raise RunError("--run", expected="the name of a folder", got=str(text), do="name one, or leave the option out")
    return Path(text)
