"""Run several jobs at a time, each in its own process, so that none of them outlives the caller."""

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
from rueda.jobs.stopping import Stopped, raise_if_stopped, signals_raise_stopped
from rueda.world.cores import usable_cores
from rueda.world.job_slot import JOB_SLOT
from rueda.world.launch.grace import time_to_save
from rueda.world.launch.processes import catches
from rueda.world.signals import SAVING, shell_status, signal_name

_POLL_SECONDS = 0.03
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
    """Run a job for each item, ``at_once`` of them at a time, each with cores / ``at_once`` threads.

    Args:
        items: one item for each job; it is passed to the callbacks.
        job_of: returns the job of an item; called just before it starts.
        at_once: how many processes run at a time.
        started: called before an item's process starts; an exception from it stops all jobs.
        finished: called when an item's job has returned its answer.
        failed: called when the job failed, with the error that it raised or a :class:`JobError`.
        waiting: called several times a second while jobs run.

    Raises:
        Stopped: after Ctrl-C, SIGTERM, SIGHUP or SIGUSR2, sent to this process or to one of the jobs. The running
            jobs get the same signal and ``RUEDA_GRACE`` seconds to save; a second Ctrl-C kills them. If this process
            itself is killed, they save and end too. SIGUSR1 is passed on to the running jobs, which save and go on.
    """
    threads = os.environ.get("OMP_NUM_THREADS", str(max(1, usable_cores() // at_once)))
    queue, running = list(items), list[tuple[Item, Process]]()
    with signals_raise_stopped(save=lambda: ask_to_save([process for _, process in running])):
        try:
            while queue or running:
                while queue and len(running) < at_once:
                    item = queue.pop(0)
                    started(item)
                    # Each job that runs now has a slot of its own, and with it a GPU, if the machine has several.
                    slot = min(set(range(at_once)) - {process.slot for _, process in running})
                    environment = {"OMP_NUM_THREADS": threads, JOB_SLOT: str(slot)}
                    running.append((item, Process.start(job_of(item), environment, slot=slot)))
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
        except BaseException as error:
            stop([process for _, process in running], error)
            raise


@dataclass(eq=False)
class Process:
    """The process of one job."""

    job: Job[Any]
    popen: subprocess.Popen[bytes]
    folder: TemporaryDirectory[str]
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_LINES))
    """the last lines of its standard error"""
    reader: threading.Thread | None = None
    slot: int = 0
    """its number among the processes that run at the same time"""

    @classmethod
    def start(cls, job: Job[Any], environment: dict[str, str], *, show: bool = False, slot: int = 0) -> Process:
        """Start the process; with ``show`` forward its output, otherwise keep only the last lines."""
        folder = TemporaryDirectory(prefix="rueda-job-")
        write_job(Path(folder.name), job, sys.argv, leave_with_parent=True)
        try:
            popen = subprocess.Popen(
                [sys.executable, "-m", "rueda.jobs.child", folder.name],
                stdin=subprocess.PIPE,  # closed when this process ends, which ends the child
                stdout=None if show else subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**os.environ, **environment},
                start_new_session=True,  # Ctrl-C reaches it only through this process
            )
        except OSError as error:
            folder.cleanup()
            raise JobError(f"cannot start a process for {job.function}: {error.strerror}", 2) from None
        process = cls(job, popen, folder, slot=slot)
        process.reader = threading.Thread(target=process._read, args=(popen.stderr, show), daemon=True)
        process.reader.start()
        return process

    def _read(self, stream: IO[bytes], show: bool) -> None:
        with stream:
            for line in stream:
                text = line.decode(errors="replace")
                self.lines.append(text)
                if show:
                    with suppress(OSError, ValueError):  # the reader of this process's standard error has gone
                        sys.stderr.write(text)
                        sys.stderr.flush()

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self.popen.poll() is not None

    def answer(self) -> Any:
        """Return the answer of a process that has ended, or raise its error."""
        try:
            assert self.reader is not None
            self.reader.join(5.0)  # with a timeout, because children of the process may keep its standard error open
            folder, status = Path(self.folder.name), self.popen.returncode
            if status == 0:
                return read_answer(folder, self.job)
            raise_if_stopped(status)
            raise_first_error(folder)
            raise JobError(self._reason(status), shell_status(status))
        finally:
            self.close()

    def _reason(self, status: int) -> str:
        if status < 0:  # the last line that it wrote is not the reason
            return f"killed by {signal_name(-status)}"
        written = [line.strip() for line in self.lines if line.strip()]
        return written[-1] if written else f"status {status}"

    def close(self) -> None:
        """Kill the process if it still runs, and remove its files."""
        if not self.ended:
            self.popen.kill()
            self.popen.wait()
        if self.popen.stdin is not None:
            self.popen.stdin.close()
        self.folder.cleanup()


def ask_to_save(running: Sequence[Process]) -> None:
    """Pass SIGUSR1 on to processes that handle it, so that they save and go on."""
    for process in running:
        if not process.ended and catches(process.popen.pid, SAVING):
            process.popen.send_signal(SAVING)


def stop(running: Sequence[Process], reason: BaseException) -> None:
    """Let processes save and exit, and kill those that have not ended in time, or after a second Ctrl-C.

    Args:
        running: the processes.
        reason: why they stop; after :class:`Stopped` they get the signal that it names, otherwise SIGTERM.
    """
    number = reason.signal if isinstance(reason, Stopped) else signal.SIGTERM
    seconds = time_to_save(number, os.environ)
    try:
        for process in running:
            if not process.ended:
                process.popen.send_signal(number)
        deadline = time.monotonic() + seconds
        for process in running:
            process.popen.wait(max(0.1, deadline - time.monotonic()))
    except KeyboardInterrupt:
        pass
    except subprocess.TimeoutExpired:
        num_late = sum(not process.ended for process in running)
        late = "the job" if num_late == 1 else f"{num_late} jobs"
        with suppress(OSError, ValueError, AttributeError):
            print(f"rueda: {late} had not ended {seconds:g} s after {signal.Signals(number).name}, so "
                  f"{'it was' if num_late == 1 else 'they were'} killed; give more time with --grace",
                  file=sys.stderr, flush=True)  # fmt: skip
    finally:
        for process in running:
            process.close()
