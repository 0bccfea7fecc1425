"""``rueda train --elastic``: starts a training as an elastic job, whose workers run the same command.

It is ``rueda run --min-np ... -m rueda train ...``: each worker, also one that comes later, gets the words that the
user typed, finds that an elastic job started it, and trains.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

if TYPE_CHECKING:
    from rueda.train.request import TrainRequest
    from rueda.world.launch.failure import Failure


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """The options of ``rueda train`` that are about the elastic job."""

    hosts: str
    hostfile: Path | None
    ssh: str
    limits: dict[str, Any]
    """those that were given, by their names on the command line"""

    @property
    def given(self) -> list[str]:
        """The names of all that were given."""
        sources = {"--hosts": self.hosts, "--hostfile": self.hostfile, "--ssh": self.ssh != "ssh"}
        return [*self.limits, *(name for name, value in sources.items() if value)]


def check_job_options(options: JobOptions, *, elastic: bool, rehearse: bool) -> None:
    """Refuse options of an elastic job without ``--elastic``, and ``--elastic`` where no worker can be lost.

    Raises:
        LaunchError: they contradict each other.
    """
    from rueda.errors import LaunchError

    if options.given and not elastic:
        raise LaunchError(f"{options.given[0]} is for an elastic job; add --elastic, or remove {options.given[0]}")
    if elastic and rehearse:
        raise LaunchError("--elastic has no effect on a rehearsal, which runs in one process; remove one of them")


def run_elastic_job(request: TrainRequest, words: list[str], options: JobOptions) -> NoReturn:
    """Start the job, and end this process with its exit status.

    Args:
        request: the training.
        words: the words of the command line, after ``rueda``.
        options: those of the job.

    Raises:
        LaunchError: the number of workers is not known, or an option is wrong.
        RunError: the folder holds a run already.
    """
    from dataclasses import replace

    from rueda.errors import LaunchError
    from rueda.files.start_directory import located
    from rueda.hvd.runner.launch_plan import plan_job
    from rueda.jobs.run_job import terminal_variables
    from rueda.records import Run
    from rueda.tasks.naming import folder_name
    from rueda.world.launch.driver import launch
    from rueda.world.launch.hosts import parse_hosts, read_hostfile
    from rueda.world.launch.output import OutputOptions

    limits, named = options.limits, bool(options.hosts or options.hostfile)
    workers = request.workers or limits.get("--max-np")
    if workers is None and named:
        listed = parse_hosts(options.hosts) if options.hosts else read_hostfile(options.hostfile or "")
        workers = sum(host.slots for host in listed)
    if workers is None:
        workers = request.known_workers() or _workers_of_task(request)
    if workers == 1 and request.workers is None and "--host-discovery-script" in limits:
        raise LaunchError("the global batch is workers x batch; say for how many workers, with --workers")
    task = Path(request.task).stem if request.task.endswith(".py") else request.task
    folder = request.folder or Path("runs", f"{folder_name(task)}-{request.date}")  # the same on all workers
    Run(located(folder, request.directory)).check_folder(resume=request.resume)
    # The global batch stays that of --workers; the job begins with as many, or with --max-np if that is less.
    most = limits.get("--max-np")
    plan = plan_job(
        ["rueda", *words, *([] if request.folder else ["--run", str(folder)]),
         *([] if request.workers else ["--workers", str(workers)])],
        module=True, workers=workers if most is None else min(workers, most), hosts=options.hosts,
        hostfile=options.hostfile, ssh=options.ssh, discovery_script=limits.get("--host-discovery-script"),
        environment={} if named or "--host-discovery-script" in limits else terminal_variables(), elastic=True,
        min_workers=limits.get("--min-np"), max_workers=most, restarts=limits.get("--restarts"),
        timeout=limits.get("--timeout"), elastic_timeout=limits.get("--elastic-timeout"),
    )  # fmt: skip
    plan = replace(plan, limits_onednn=True)  # the training limits oneDNN itself, once it knows its precision
    raise typer.Exit(launch(plan, output=OutputOptions(quiet_ranks=True), failed=_show_traceback))


def _workers_of_task(request: TrainRequest) -> int:
    """Return the number of workers of a training that only the task's own recipe states."""
    from rueda.tasks import load_task
    from rueda.train.job import resolved_recipe

    return resolved_recipe(load_task(request.task), request).workers


def _show_traceback(failure: Failure, stderr: str) -> None:
    """Print the traceback that ended the job, unless it is rank 0's, whose output was shown already."""
    from rueda.world.launch.failure import last_traceback

    lines = last_traceback(stderr)
    if failure.rank != 0 and lines and lines[0].startswith("Traceback"):
        print("\n".join(lines), file=sys.stderr, flush=True)
