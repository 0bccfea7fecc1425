"""Runs a plan of faults: jobs side by side, each with a limit of time, and what became of every fault."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from faults.elastic_jobs import run_elastic
from faults.host_training import run_on_hosts
from faults.outcomes import Outcome, outcomes_of
from faults.plan import JOBS, PlannedJob
from faults.training import prepare, run_training
from namespaces import Hosts, NoHostsError, made_hosts

Runner = Callable[[PlannedJob, Path, Hosts | None], list[Outcome]]
RUNNERS: dict[str, Runner] = {
    "fit-2": lambda job, place, hosts: run_training(job, place),
    "fit-3": lambda job, place, hosts: run_training(job, place),
    "rehearse-4": lambda job, place, hosts: run_training(job, place),
    "train-2": lambda job, place, hosts: run_training(job, place),
    "hvd-2": lambda job, place, hosts: run_training(job, place),
    "hosts-2": run_on_hosts,
    "elastic-3": run_elastic,
    "elastic-hosts-2": run_elastic,
    "elastic-hosts-4": run_elastic,
    "hvd-elastic-3": run_elastic,
    "hvd-elastic-hosts-4": run_elastic,
    "train-elastic-3": run_elastic,
    "train-elastic-hosts-4": run_elastic,
}
"""what runs a kind of job"""
STREAMS = (
    ("fit-2", "fit-3", "rehearse-4", "hvd-2"),
    ("elastic-3", "hvd-elastic-3", "train-2"),
    ("elastic-hosts-4", "train-elastic-3"),
    ("hosts-2", "train-elastic-hosts-4"),
    ("hvd-elastic-hosts-4",),
)
"""kinds of jobs that run one after the other; the streams run side by side, since most of them wait most of the time"""


def run_plan(
    plan: Sequence[PlannedJob], place: Path, *, seconds: float, told: Callable[[Outcome], None]
) -> list[Outcome]:  # fmt: skip
    """Run the jobs of a plan, and return what became of their faults.

    Args:
        plan: the jobs.
        place: an empty folder for them.
        seconds: after so long no job is begun; its faults count as not reached.
        told: is called with each outcome as soon as it is known.
    """
    names = {job.name for job in plan}
    prepare(names, place)
    deadline, found = time.monotonic() + seconds, queue.SimpleQueue[Outcome]()
    threads = []
    for number, stream in enumerate(STREAMS):
        jobs = [job for name in stream for job in plan if job.name == name]
        if jobs:
            arguments = (jobs, place, f"rf{number}x", deadline, found)
            threads.append(threading.Thread(target=_run_stream, args=arguments, daemon=True))
    for thread in threads:
        thread.start()
    outcomes: list[Outcome] = []
    while any(thread.is_alive() for thread in threads) or not found.empty():
        with contextlib.suppress(queue.Empty):
            outcomes.append(found.get(timeout=0.2))
            told(outcomes[-1])
    return sorted(outcomes, key=lambda one: one.fault.number)


def _run_stream(
    jobs: list[PlannedJob], place: Path, prefix: str, deadline: float, found: queue.SimpleQueue[Outcome]
) -> None:  # fmt: skip
    with contextlib.ExitStack() as stack:
        hosts: Hosts | None = None
        problem = ""
        if any("hosts" in job.name for job in jobs):
            folder = place / f"hosts-{prefix}"
            folder.mkdir()
            try:
                hosts = stack.enter_context(made_hosts(folder, f"{prefix}{place.name[-6:]}"))
            except NoHostsError as error:
                problem = str(error)
        for job in jobs:
            for one in _run_job(job, place, hosts, deadline, problem if "hosts" in job.name else ""):
                found.put(one)


def _run_job(
    job: PlannedJob, place: Path, hosts: Hosts | None, deadline: float, problem: str
) -> list[Outcome]:  # fmt: skip
    if not problem and time.monotonic() > deadline:
        problem = "the time of the campaign was over"
    if not problem:
        try:
            return RUNNERS[job.name](job, place / str(job.number), hosts if "hosts" in JOBS[job.name].words else None)
        except Exception:
            problem = f"the campaign itself failed: {traceback.format_exc()[-800:]}"
    outcomes = list(outcomes_of(job).values())
    for one in outcomes:
        one.problems.append(problem)
    return outcomes
