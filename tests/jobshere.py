"""Jobs without starts, since each costs seconds: in the test's own process, or on workers that are forked.

Requests and answers go through JSON, as ever.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from forked import forked
from rueda import jobs
from rueda.errors import RuedaError
from rueda.jobs.messages import call, load
from rueda.records.json_record import read_record
from rueda.world.launch import LaunchPlan
from rueda.world.launch.failure import Failure

CHILD = """
import sys
from pathlib import Path
from rueda.jobs.child import main
from rueda.world.leaving import leave
leave(main(Path(sys.argv[1])))
"""


def run_jobs_here(monkeypatch: pytest.MonkeyPatch, after_each: Callable[[], None] = lambda: None) -> None:
    """Replace ``jobs.run`` of one worker and ``jobs.run_many``; several workers are started as ever."""
    real = jobs.run

    def run(job: Any, *, workers: int = 1, show: bool = False) -> Any:
        if workers > 1:
            return real(job, workers=workers, show=show)
        answer = call(load(job.function), json.loads(json.dumps(asdict(job.request), default=str)))
        return read_record(job.answer, json.loads(json.dumps(asdict(answer), default=str)), "answer")

    def run_many(items: Any, job_of: Any, at_once: int, *, started: Any, finished: Any, failed: Any, **_: Any) -> None:
        for item in items:
            started(item)
            try:
                run(job_of(item))
            except RuedaError as error:
                failed(item, error)
            else:
                finished(item)
            after_each()

    monkeypatch.setattr(jobs, "run", run)
    monkeypatch.setattr(jobs, "run_many", run_many)


def fork_workers_of_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the workers of a job be forked from the server of the tests, in place of an agent and its starts of torch."""

    def launch(plan: LaunchPlan, *, failed: Callable[[Failure, str], None], **_: Any) -> int:
        (host,) = plan.hosts
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        shared = {
            **os.environ, **plan.environment, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            "WORLD_SIZE": str(host.slots), "LOCAL_WORLD_SIZE": str(host.slots),
        }  # fmt: skip
        ranks = [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(host.slots)]
        with forked(CHILD, ranks, plan.program[-1]) as started:
            ended = [process.wait() for process in started]
        for rank, (status, _, errors) in enumerate(ended):
            if status:
                failed(Failure(rank=rank, host=host.name, status=status, ended=0.0), errors)
                return status
        return 0

    monkeypatch.setattr("rueda.jobs.run_job.launch", launch)
