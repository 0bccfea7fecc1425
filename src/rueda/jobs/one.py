"""Runs one job: in one process, or on N workers of this machine."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rueda.errors import JobError
from rueda.jobs.messages import Answer, Job, raise_first_error, read_answer, write_job
from rueda.jobs.processes import Process, stop
from rueda.jobs.stopping import Stopped, raise_if_stopped, signals_raise_stopped
from rueda.world.launch import Host, LaunchPlan, Show, launch
from rueda.world.launch.failure import Failure, last_traceback, summary

_POLL_SECONDS = 0.02


def run(job: Job[Answer], *, workers: int = 1, show: bool = False) -> Answer:
    """Run a job on N workers of this machine and give its answer, which is rank 0's.

    One worker is one process. Several are started by the launcher: the function finds them by :func:`rueda.init`.

    Args:
        job: the function, its request and the type of its answer.
        workers: how many processes run the function.
        show: hand on what one process writes, so that it can show its progress, on a terminal as a bar. Of several
            workers, rank 0's output is always handed on.

    Raises:
        RuedaError: what the function raised, of the same class, in one line.
        Stopped: by Ctrl-C or SIGTERM, the job has saved what it saves; or by SIGPIPE, nobody reads the output of the
            workers any more.
        JobError: it failed in another way; the message names the signal, or the last line that was written.
    """
    return _run_process(job, show) if workers == 1 else _run_workers(job, workers)


def _run_process(job: Job[Answer], show: bool) -> Answer:
    with signals_raise_stopped():
        process = Process.start(job, _terminal() if show else {}, show=show)
        try:
            while not process.ended:
                time.sleep(_POLL_SECONDS)
        except BaseException:
            stop([process])
            raise
        answer: Answer = process.answer()
        return answer


def _run_workers(job: Job[Answer], workers: int) -> Answer:
    failures: list[tuple[Failure, str]] = []
    with TemporaryDirectory(prefix="rueda-job-") as scratch:
        folder = Path(scratch)
        write_job(folder, job, sys.argv, leave_with_parent=False)  # the launcher's agents see to that
        plan = LaunchPlan(
            program=(sys.executable, "-m", "rueda.jobs.child", scratch),
            hosts=(Host(name="localhost", slots=workers),),
            environment=_terminal(),
            limits_onednn=True,  # a training knows its precision
        )
        status = launch(
            plan, show=Show(quiet_ranks=True), failed=lambda failure, words: failures.append((failure, words))
        )
        if status == 0:
            return read_answer(folder, job)
        if status == 128 + signal.SIGPIPE:  # nobody reads the output any more, nor an error about that
            raise Stopped(signal.SIGPIPE)
        raise_if_stopped(status)
        raise_first_error(folder)
        raise JobError(_reason(failures, workers, status), status)


def _reason(failures: list[tuple[Failure, str]], workers: int, status: int) -> str:
    """Name the rank that failed first, and how; the others' tracebacks are shown, since rank 0 speaks alone."""
    if not failures:
        return f"the {workers} workers ended with status {status}"
    failure, words = failures[0]
    lines = last_traceback(words)
    if failure.rank != 0:
        print("\n".join(lines), file=sys.stderr, flush=True)
    last: Any = next((line.strip() for line in reversed(lines) if line.strip()), None)
    return summary(failure) + (f": {last}" if last and failure.status > 0 else "")


def _terminal() -> dict[str, str]:
    """Name the user's terminal, on which a worker can draw though its own output is a pipe."""
    with suppress(OSError, ValueError):
        if sys.stderr.isatty():
            return {"RUEDA_TERMINAL": os.ttyname(sys.stderr.fileno())}
    return {}
