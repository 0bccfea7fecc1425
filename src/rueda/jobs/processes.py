"""Runs several jobs at a time, each in a process of its own, and leaves none behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, TypeVar

from rueda.errors import JobError, RuedaError
from rueda.jobs.messages import Job, raise_first_error, read_answer, write_job
from rueda.jobs.stopping import raise_if_stopped, shell_status, signals_raise_stopped
from rueda.world.cores import usable_cores

_POLL_SECONDS = 0.03
_PATIENCE_SECONDS = 60.0
_LAST_LINES = 60

Item = TypeVar("Item")


def run_many(
    items: Sequence[Item],
    job_of: Callable[[Item], Job[Any]],
    at_once: int,
    *,
    started: Callable[[Item], None],
    finished: Callable[[Item], None],
    failed: Callable[[Item, RuedaError], None],
    waiting: Callable[[], None],
) -> None:
    """Run a job for each item, ``at_once`` of them at a time, in processes of cores / ``at_once`` threads.

    Args:
        items: what the callbacks are called with.
        job_of: from an item to its job; called when it is its turn.
        at_once: how many processes run at a time.
        started: called before an item's process starts; what it raises ends everything.
        finished: called when an item's job has answered.
        failed: called when it has not: with the error that it raised, or with a :class:`JobError`.
        waiting: called a few times a second meanwhile.

    Raises:
        Stopped: by Ctrl-C or SIGTERM, here or of one of the processes. Each running one is asked to save and leave
            first; a second Ctrl-C does not wait for that. Should this process be killed, they end with it.
    """
    threads = os.environ.get("OMP_NUM_THREADS", str(max(1, usable_cores() // at_once)))
    queue, running = list(items), list[tuple[Item, Process]]()
    with signals_raise_stopped():
        try:
            while queue or running:
                while queue and len(running) < at_once:
                    item = queue.pop(0)
                    started(item)
                    running.append((item, Process.start(job_of(item), {"OMP_NUM_THREADS": threads})))
                time.sleep(_POLL_SECONDS)
                for item, process in [one for one in running if one[1].ended]:
                    running.remove((item, process))
                    try:
                        process.answer()
                    except RuedaError as error:
                        failed(item, error)
                    else:
                        finished(item)
                waiting()
        finally:
            stop([process for _, process in running])


@dataclass(eq=False)
class Process:
    """The process of one job."""

    job: Job[Any]
    popen: subprocess.Popen[bytes]
    folder: TemporaryDirectory[str]
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_LINES))
    """the end of its standard error"""
    reader: threading.Thread | None = None

    @classmethod
    def start(cls, job: Job[Any], environment: dict[str, str], *, show: bool = False) -> Process:
        """Start the process; with ``show`` its output is the caller's, otherwise the end of it is kept."""
        folder = TemporaryDirectory(prefix="rueda-job-")
        write_job(Path(folder.name), job, sys.argv, leave_with_parent=True)
        try:
            popen = subprocess.Popen(
                [sys.executable, "-m", "rueda.jobs.child", folder.name],
                stdin=subprocess.PIPE,  # its end is the sign that this process is gone
                stdout=None if show else subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**os.environ, **environment},
                start_new_session=True,  # Ctrl-C comes through this process, once
            )
        except OSError as error:
            folder.cleanup()
            raise JobError(f"cannot start a process for {job.function}: {error.strerror}", 2) from None
        process = cls(job, popen, folder)
        process.reader = threading.Thread(target=process._read, args=(popen.stderr, show), daemon=True)
        process.reader.start()
        return process

    def _read(self, stream: IO[bytes], show: bool) -> None:
        with stream:
            for line in stream:
                text = line.decode(errors="replace")
                self.lines.append(text)
                if show:
                    with suppress(OSError, ValueError):  # nobody reads the caller's standard error any more
                        sys.stderr.write(text)
                        sys.stderr.flush()

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.popen.poll() is not None

    def answer(self) -> Any:
        """Give the answer of a process that has ended, or raise what it ended with."""
        try:
            assert self.reader is not None
            self.reader.join(5.0)  # children of the process may keep its standard error open
            folder, status = Path(self.folder.name), self.popen.returncode
            if status == 0:
                return read_answer(folder, self.job)
            raise_if_stopped(status)
            raise_first_error(folder)
            raise JobError(self._reason(status), shell_status(status))
        finally:
            self.close()

    def _reason(self, status: int) -> str:
        if status < 0:  # whatever it wrote, it was not about this
            return f"killed by {signal.Signals(-status).name}"
        written = [line.strip() for line in self.lines if line.strip()]
        return written[-1] if written else f"status {status}"

    def close(self) -> None:
        """Kill it if it still runs, and remove its files."""
        if not self.ended:
            self.popen.kill()
            self.popen.wait()
        if self.popen.stdin is not None:
            self.popen.stdin.close()
        self.folder.cleanup()


def stop(running: Sequence[Process]) -> None:
    """Ask processes to save and leave; kill what does not within a minute, or at a second Ctrl-C."""
    try:
        for process in running:
            if not process.ended:
                process.popen.send_signal(signal.SIGINT)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        for process in running:
            process.popen.wait(max(0.1, deadline - time.monotonic()))
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        pass
    finally:
        for process in running:
            process.close()
