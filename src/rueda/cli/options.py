"""Options that several commands share, with one help text each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

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


MinWorkers = Annotated[
    int | None, typer.Option("--min-np", help="Elastic: go on after a failure with at least so many workers (1).")
]
MaxWorkers = Annotated[int | None, typer.Option("--max-np", help="Elastic: the most workers (-np, else all slots).")]
Restarts = Annotated[
    int | None, typer.Option("--restarts", help="Elastic: survive so many failures; by default any number.")
]
SilenceTimeout = Annotated[
    float | None,
    typer.Option("--timeout", metavar="SECONDS",
                 help="Elastic: give up a host or worker that is silent for so long (30)."),
]  # fmt: skip
ElasticTimeout = Annotated[
    float | None,
    typer.Option("--elastic-timeout", metavar="SECONDS", help="Elastic: wait so long for enough hosts (600)."),
]
DiscoveryScript = Annotated[
    str,
    typer.Option("--host-discovery-script", metavar="FILE", help="Elastic: a program that prints a host per line."),
]
Hosts = Annotated[str, typer.Option("-H", "--hosts", help="Hosts and their slots: server1:4,server2:4.")]
Hostfile = Annotated[Path | None, typer.Option(help="File with one host per line: server1 slots=4.")]
SshCommand = Annotated[str, typer.Option(help="The ssh command, with its options.")]


def elastic_options(
    least: int | None, most: int | None, restarts: int | None, timeout: float | None, elastic_timeout: float | None,
    discovery_script: str,
) -> dict[str, Any]:  # fmt: skip
    """Return the options of an elastic job that were given, by their names on the command line."""
    limits = {
        "--min-np": least, "--max-np": most, "--restarts": restarts, "--timeout": timeout,
        "--elastic-timeout": elastic_timeout, "--host-discovery-script": discovery_script or None,
    }  # fmt: skip
    return {name: limit for name, limit in limits.items() if limit is not None}


def folder_of(text: str | Path) -> Path:
    """Convert an option to the path of a folder; an empty one, such as an unset shell variable, is refused."""
    from rueda.errors import RunError

    if not str(text).strip():
        raise RunError("--run", expected="the name of a folder", got=str(text), do="name one, or leave the option out")
    return Path(text)
