"""The program that lists the hosts of an elastic job; it is run every second, and a change is told to the driver."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable

from rueda.errors import LaunchError
from rueda.world.launch.hosts import Host, parse_hosts

_PAUSE_SECONDS = 1.0


def discover(script: str, *, slots: int = 1, seconds: float | None = None) -> list[Host]:
    """Run a program that prints one host per line, such as ``server1:4`` or ``server1``, and return the hosts.

    Args:
        script: the program.
        slots: the slots of hosts without a number.
        seconds: the time limit.

    Raises:
        LaunchError: it cannot be started, fails, takes too long, or prints something else.
    """
    try:
        done = subprocess.run(
            [os.path.abspath(script)], text=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=seconds
        )
    except OSError as error:
        raise LaunchError(f"the script {script} cannot be started ({error.strerror}); make it executable") from None
    except subprocess.TimeoutExpired:
        raise LaunchError(f"the script {script} did not end within {seconds:g} s; let it answer sooner") from None
    if done.returncode:
        raise LaunchError(
            f"the script {script} named no host (exit status {done.returncode}); it must print one host per line"
        )
    words = done.stdout.split()
    return parse_hosts(",".join(words), slots=slots) if words else []


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
        self.error: LaunchError | None = None
        """why the last run gave nothing; the hosts stay as they were then"""
        threading.Thread(target=self._run, name="discovery", daemon=True).start()

    def stop(self) -> None:
        """End the thread, without waiting for the program."""
        self._stopped.set()

    def _run(self) -> None:
        script, slots, seconds = self._arguments
        last: list[Host] | None = None
        while not self._stopped.wait(0.0 if last is None and self.error is None else _PAUSE_SECONDS):
            try:
                found = discover(script, slots=slots, seconds=seconds)
            except LaunchError as error:
                self.error = error
                continue
            self.error = None
            if found != last:
                last = found
                self._changed(found)
