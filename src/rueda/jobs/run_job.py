"""Run one job in one process, or on N workers of this machine."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rueda.errors import JobError, JobTimeout
from rueda.jobs.messages import Answer, Job, has_saved, raise_first_error, read_answer, write_job
from rueda.jobs.processes import Process, ask_to_save, stop
from rueda.jobs.stopping import Stopped, raise_if_stopped, signals_raise_stopped
from rueda.world.launch import Host, LaunchPlan, OutputOptions, launch
from rueda.world.launch.failure import Failure, last_traceback, summary
from rueda.world.signals import exit_status

_POLL_SECONDS = 0.02


def run(job: Job[Answer], *, workers: int = 1, show: bool = False, timeout: float | None = None) -> Answer:
    """Run a job on N workers of this machine and return rank 0's answer.

    A single worker is a plain process. Several are started by the launcher and connect in :func:`rueda.init`.

    Args:
        job: the function, its request and the type of its answer.
        workers: how many processes run the function.
        show: whether to forward the output of a single process, such as its progress bar. With several workers, rank
            0's output is always forwarded.
        timeout: the seconds after which a single process is killed; None sets no limit.

    Raises:
        RuedaError: the error that the function raised, of the same class, in one line.
        Stopped: after Ctrl-C, SIGTERM, SIGHUP or SIGUSR2, when the job has saved its state; or after SIGPIPE, when
            the reader of the workers' output has gone.
        JobError: the job failed in another way; the message names the signal, the last line of output or the timeout.
    """
    return _run_process(job, show, timeout) if workers == 1 else _run_workers(job, workers)


def _run_process(job: Job[Answer], show: bool, timeout: float | None) -> Answer:
    running: list[Process] = []
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    with signals_raise_stopped(save=lambda: ask_to_save(running)):
        process = Process.start(job, terminal_variables() if show else {}, show=show)
        running.append(process)
        try:
            while not process.ended:
                if time.monotonic() > deadline:
                    process.close()
                    raise JobTimeout(f"{job.function} was still running after {timeout:g} seconds")
                time.sleep(_POLL_SECONDS)
        except BaseException as error:
            stop(running, error)
            raise
        answer: Answer = process.answer()
        return answer


def _run_workers(job: Job[Answer], workers: int) -> Answer:
    failures: list[tuple[Failure, str]] = []
    with TemporaryDirectory(prefix="rueda-job-") as scratch:
        folder = Path(scratch)
        write_job(folder, job, sys.argv, leave_with_parent=False)  # the launcher's agents end the workers
        plan = LaunchPlan(
            program=(sys.executable, "-m", "rueda.jobs.child", scratch),
            hosts=(Host(name="localhost", slots=workers),),
            environment=terminal_variables(),
            limits_onednn=True,  # the job limits oneDNN itself, once it knows its precision
        )
        options = OutputOptions(quiet_ranks=True)
        status = launch(plan, output=options, failed=lambda failure, stderr: failures.append((failure, stderr)))
        if status == 0:
            return read_answer(folder, job)
        if status == exit_status(signal.SIGPIPE):  # the reader of the output has gone: nobody reads an error message
            raise Stopped(signal.SIGPIPE)
        raise_if_stopped(status, saved=has_saved(folder))
        raise_first_error(folder)
        raise JobError(_reason(failures, workers, status), status)


def _reason(failures: list[tuple[Failure, str]], workers: int, status: int) -> str:
    """Describe the first failure; print its traceback unless it is rank 0's, whose output was shown already."""
    if not failures:
        return f"the {workers} workers ended with status {status}"
    failure, words = failures[0]
    lines = last_traceback(words)
    if failure.rank != 0:
        print("\n".join(lines), file=sys.stderr, flush=True)
    last: Any = next((line.strip() for line in reversed(lines) if line.strip()), None)
    return summary(failure, words) + (f": {last}" if last and failure.status > 0 else "")


def terminal_variables() -> dict[str, str]:
    """Return the environment variable that names the user's terminal; empty if there is none.

    A worker draws its progress bar there, since its standard error is a pipe.
    """
    with suppress(OSError, ValueError):
        if sys.stderr.isatty():
            return {"RUEDA_TERMINAL": os.ttyname(sys.stderr.fileno())}
    return {}
