"""A job that runs while another process watches its events and disturbs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from launching import RUEDA, Started
from rueda.world.launch.elastic_job.settings import TIMEOUT_SECONDS

TESTS, SOURCES = Path(__file__).parents[1], Path(__file__).parents[2] / "src"
LIMIT = 4 * TIMEOUT_SECONDS
"""a job that does not go on after so many seconds hangs"""
Row = dict[str, Any]


class HangingError(Exception):
    """A job that did not come so far in time."""


class WatchedJob:
    """A launched job.

    Args:
        command: the whole command line.
        control: the folder of the events.
        variables: additions to the environment.
    """

    def __init__(self, command: Sequence[str], control: Path, variables: dict[str, str]) -> None:
        self.control = control
        self.rows: list[Row] = []
        self.lines: list[tuple[float, str]] = []
        """what the launcher said, and when"""
        self._place = 0
        self.last_fault = 0.0
        mark = uuid.uuid4().hex
        path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(TESTS), str(SOURCES)])
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "RUEDA_TEST_MARK": mark, **variables}
        process = subprocess.Popen(
            list(command), cwd=control, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self.started = Started(process, mark)
        self._reader = threading.Thread(target=self._read_lines, daemon=True)
        self._reader.start()

    def _read_lines(self) -> None:
        assert self.started.process.stderr is not None
        for line in self.started.process.stderr:
            self.lines.append((time.monotonic(), line.rstrip()))

    def read(self) -> list[Row]:
        """Read the events that have come since the last call."""
        file = self.control / "events.jsonl"
        if not file.exists():
            return []
        with open(file, "rb") as stream:
            stream.seek(self._place)
            content = stream.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._place += len(whole)
        fresh = [json.loads(line) for line in whole.splitlines()]
        self.rows += fresh
        return fresh

    def wait(self, wanted: Callable[[Row], bool], what: str, *, after: float = 0.0, seconds: float = LIMIT) -> Row:
        """Wait for an event after some moment."""
        deadline, place = time.monotonic() + seconds, 0
        while True:
            self.read()
            while place < len(self.rows):
                row = self.rows[place]
                place += 1
                if row["time"] >= after and wanted(row):
                    return row
            if self.started.process.poll() is not None:
                status = self.started.process.returncode
                raise HangingError(f"the job ended with status {status} before {what}: {self.said()}")
            if time.monotonic() > deadline:
                raise HangingError(f"{what} did not come within {seconds:g} s: {self.said()}")
            time.sleep(0.005)

    def said(self, after: float = 0.0) -> str:
        """Return the launcher's own lines, those with a prefix of a rank left out."""
        return "\n".join(line for when, line in self.lines if when >= after and line.startswith("rueda:"))[-1500:]

    def first_line(self, words: Sequence[str], after: float, seconds: float = 5.0) -> tuple[float, str] | None:
        """Return the first line of the launcher after a moment that holds one of some words; it may still be read."""
        deadline = time.monotonic() + seconds
        while True:
            for when, line in list(self.lines):
                if when >= after and any(word in line for word in words):
                    return when, line
            if time.monotonic() > deadline:
                return None
            time.sleep(0.01)

    def end(self, seconds: float) -> int | None:
        """Wait for the end; returns the exit status, None if it hangs."""
        try:
            status = self.started.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        self._reader.join(10.0)
        self.read()
        return status

    def close(self) -> None:
        if self.started.process.poll() is None:
            os.killpg(self.started.process.pid, signal.SIGKILL)
            self.started.process.wait()
        self.started.signal_all(signal.SIGKILL)
        self._reader.join(10.0)
        if self.started.process.stderr is not None:
            self.started.process.stderr.close()


@contextmanager
def watched(command: Sequence[str], control: Path, variables: dict[str, str]) -> Iterator[WatchedJob]:
    """Launch a job, and end what is left of it."""
    job = WatchedJob(command, control, variables)
    try:
        yield job
    finally:
        job.close()


def rueda_run(*words: str) -> list[str]:
    return [*RUEDA, *words]


def module(name: str) -> list[str]:
    """Return the words that run a module of the campaign as the program of a launcher."""
    return [sys.executable, "-m", f"faults.{name}"]
