"""The program that lists the hosts of an elastic job; it is run every second, and a change is told to the driver."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable

from rueda.errors import LaunchError
from rueda.world.launch.hosts import Host, parse_host_lines
from rueda.world.launch.processes import die_with_parent, signal_group

_PAUSE_SECONDS = 1.0


def discover(
    script: str, *, slots: int = 1, seconds: float | None = None,
    started: Callable[[subprocess.Popen[bytes]], None] | None = None,
) -> list[Host]:  # fmt: skip
    """Run a program that prints one host per line, such as ``server1:4`` or ``server1``, and return the hosts.

    Args:
        script: the program.
        slots: the slots of hosts without a number.
        seconds: the time limit, after which the program is killed with all that it has started.
        started: called with the process, which leads a process group of its own.

    Raises:
        LaunchError: it cannot be started, fails, takes too long, or prints something else.
    """
    try:
        process = subprocess.Popen(
            [os.path.abspath(script)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True, preexec_fn=die_with_parent,
        )  # fmt: skip
    except OSError as error:
        raise LaunchError(f"the script {script} cannot be started ({error.strerror}); make it executable") from None
    with process:
        if started is not None:
            started(process)
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            signal_group(process.pid, signal.SIGKILL)  # also the `sleep` of a shell script, which would stay behind
            raise LaunchError(f"the script {script} did not end within {seconds:g} s; let it answer sooner") from None
    if process.returncode:
        said = err.decode(errors="replace").strip().splitlines()[-1:]
        why = ": ".join([f"exit status {process.returncode}", *said])
        raise LaunchError(f"the script {script} named no host ({why}); it must print one host per line")
    try:
        return parse_host_lines(out.decode().splitlines(), slots=slots)
    except UnicodeDecodeError:
        raise LaunchError(f"the script {script} printed what is not text; it must print one host per line") from None
    except LaunchError as error:
        raise LaunchError(f"the script {script} must print one host per line; {error}") from None


class Discovery:
    """Runs the program in a thread.

    Args:
        script: the program.
        slots: the slots of hosts without a number.
        seconds: its time limit.
        changed: called in the thread, with the hosts, whenever they differ from the last ones.
    """

    def __init__(self, script: str, *, slots: int, seconds: float, changed: Callable[[list[Host]], None]) -> None:
        self._arguments = (script, slots, seconds)
        self._changed = changed
        self._stopped = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self.error: LaunchError | None = None
        """why the last run gave nothing; the hosts stay as they were then"""
        threading.Thread(target=self._run, name="discovery", daemon=True).start()

    def stop(self) -> None:
        """End the thread, and the program if it runs."""
        self._stopped.set()
        if self._process is not None and self._process.poll() is None:
            signal_group(self._process.pid, signal.SIGKILL)

    def _started(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        if self._stopped.is_set():
            signal_group(process.pid, signal.SIGKILL)

    def _run(self) -> None:
        script, slots, seconds = self._arguments
        last: list[Host] | None = None
        while not self._stopped.wait(0.0 if last is None and self.error is None else _PAUSE_SECONDS):
            try:
                found = discover(script, slots=slots, seconds=seconds, started=self._started)
            except LaunchError as error:
                self.error = error
                continue
            self.error = None
            if found != last:
                last = found
                self._changed(found)
