"""Jobs in the test's own process, since a start with torch costs seconds; requests and answers go through JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from rueda import jobs
from rueda.errors import RuedaError
from rueda.jobs.messages import call, load
from rueda.records.json_record import read_record


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
