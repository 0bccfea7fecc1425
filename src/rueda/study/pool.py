"""Runs several trainings at a time, each in a process of its own, and leaves none behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, Any

from rueda.errors import RunError
from rueda.records import Recipe
from rueda.tasks import Task
from rueda.world.cores import usable_cores

_POLL_SECONDS = 0.1
_PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class Job:
    """A run to make."""

    name: str
    seed: int
    recipe: Recipe
    folder: Path


class Stopped(KeyboardInterrupt):
    """A signal stopped the study, Ctrl-C or another; the command's exit status is 128 + its number."""

    def __init__(self, number: int | None) -> None:
        super().__init__()
        self.signal = int(number or signal.SIGINT)


STOPS = {128 + number: number for number in (signal.SIGINT, signal.SIGTERM)}
"""exit statuses of a training that was asked to stop, and did; any other is a failure"""


@dataclass
class _Process:
    job: Job
    process: subprocess.Popen[bytes]
    errors: IO[bytes] = field(repr=False)

    def reason(self) -> str:
        """Give the last line that it wrote, which says what went wrong."""
        if self.process.returncode < 0:  # whatever it wrote, it was not about this
            return f"killed by {signal.Signals(-self.process.returncode).name}"
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1].removeprefix("rueda: ") if lines else f"status {self.process.returncode}"

    def close(self) -> None:
        """Let go of its files."""
        self.errors.close()
        if self.process.stdin is not None:
            self.process.stdin.close()


def run_in_processes(
    task: str,
    jobs: Sequence[Job],
    at_once: int,
    *,
    started: Callable[[Job], None],
    finished: Callable[[Job], None],
    failed: Callable[[Job, Exception], None],
    waiting: Callable[[], None],
) -> None:
    """Run the jobs, ``at_once`` of them at a time, in processes of cores / ``at_once`` threads.

    Ctrl-C and SIGTERM let each running one finish its step and save; then KeyboardInterrupt is raised, of SIGTERM as
    :class:`Stopped`. Should this process be killed, they end with it.
    """
    queue, running = list(jobs), list[_Process]()
    with _termination_as_interrupt():
        try:
            while queue or running:
                while queue and len(running) < at_once:
                    job = queue.pop(0)
                    started(job)
                    running.append(_start(task, job, at_once))
                time.sleep(_POLL_SECONDS)
                for one in [one for one in running if one.process.poll() is not None]:
                    running.remove(one)
                    status, reason = one.process.returncode, one.reason()
                    one.close()
                    if status == 0:
                        finished(one.job)
                    elif status in STOPS:
                        raise Stopped(STOPS[status])  # somebody stopped this run alone: the whole study is meant
                    else:
                        failed(one.job, RunError(reason))
                waiting()
        finally:
            _stop(running)


def run_here(
    task: Task,
    jobs: Sequence[Job],
    *,
    started: Callable[[Job], None],
    finished: Callable[[Job], None],
    failed: Callable[[Job, Exception], None],
) -> None:
    """Run the jobs one after the other in this process: for a task that exists in no file."""
    from rueda.train import fit

    for job in jobs:
        started(job)
        try:
            result = fit(
                task, job.recipe, folder=job.folder, resume=True, progress=False, rehearse=job.recipe.workers > 1
            )  # fmt: skip
        except Exception as error:  # as a process of its own would end alone, whatever it was
            failed(job, error)
            continue
        if result.status == "interrupted":
            raise Stopped(result.signal)
        finished(job)


def _start(task: str, job: Job, at_once: int) -> _Process:
    job.recipe.save(job.folder / "recipe.toml")
    errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
    threads = os.environ.get("OMP_NUM_THREADS", str(max(1, usable_cores() // at_once)))
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "rueda.study.one_run", task, str(job.folder)],
            stdin=subprocess.PIPE,  # its end is the sign that this process is gone
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={**os.environ, "OMP_NUM_THREADS": threads},
            start_new_session=True,  # Ctrl-C comes through this process, once
        )
    except OSError as error:
        raise RunError(f"cannot start a process for {job.name}: {error.strerror}") from None
    return _Process(job, process, errors)


def _stop(running: list[_Process]) -> None:
    """Ask those that still run to save and leave; kill what does not."""
    try:
        for one in running:
            if one.process.poll() is None:
                one.process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        for one in running:
            one.process.wait(max(0.1, deadline - time.monotonic()))
    except (KeyboardInterrupt, subprocess.TimeoutExpired):  # a second Ctrl-C does not wait
        pass
    finally:
        for one in running:
            if one.process.poll() is None:
                one.process.kill()
                one.process.wait()
            one.close()


@contextmanager
def _termination_as_interrupt() -> Iterator[None]:
    def raise_interrupt(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old: Any = signal.signal(signal.SIGTERM, raise_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)
