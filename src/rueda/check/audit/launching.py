"""The launch of a checked script, and the watch over ranks that wait for each other in vain."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rueda.check.audit.judge.journals import Journals, read_journals
from rueda.check.audit.watch.journal import ENDED, LIMIT, STOP, VARIABLE
from rueda.errors import LaunchError
from rueda.world.launch import LaunchPlan, OutputOptions, driver
from rueda.world.launch.failure import Failure
from rueda.world.launch.program import resolve

PATIENCE = 10.0
"""seconds for which all ranks must be idle in collectives before they count as waiting in vain"""
_IDLE = 0.2  # of a core that a waiting rank uses at most
_LOOK_SECONDS = 0.5
_KILL_SECONDS = 5.0  # after which a rank that has not heard the request to stop is killed


def observed(plan: LaunchPlan, *, updates: int, output: OutputOptions | None = None) -> tuple[int, Journals]:
    """Run a script on its workers, each of which observes itself; return its exit status and what was observed.

    Args:
        plan: the script, its arguments and the workers of this machine.
        updates: optimizer steps after which the script is ended; 0: it runs to its own end.
        output: how the workers' output is shown.

    Raises:
        LaunchError: the program is no Python script, or workers are on other machines.
    """
    if any(not host.is_local for host in plan.hosts):
        raise LaunchError("the hosts", expected="this machine", got=plan.hosts[-1].name, do="check it with -np alone")
    folder = Path(tempfile.mkdtemp(prefix="rueda-check-"))
    try:
        return observed_in(Watch(folder, plan.workers), plan, updates=updates, output=output)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def observed_in(
    watch: Watch,
    plan: LaunchPlan,
    *,
    worker: str = "rueda.check.audit",
    updates: int = 0,
    output: OutputOptions | None = None,
    failed: Callable[[Failure, str], None] | None = None,
) -> tuple[int, Journals]:
    """Run a script on its workers as :func:`observed` does, with a watch and in a folder of the caller's.

    Args:
        watch: looks at the workers while they run, in the folder of their journals.
        plan: the script, its arguments and the workers of this machine.
        worker: the module that each worker runs.
        updates: optimizer steps after which the script is ended; 0: it runs to its own end.
        output: how the workers' output is shown.
        failed: called with the first failure and the end of that worker's standard error; by default they are printed.
    """
    script, program = _script(plan)
    value = json.dumps({"folder": str(watch.folder), "updates": updates})
    audited = replace(plan, program=(worker, *program), module=True, environment={**plan.environment, VARIABLE: value})
    watch.start()
    try:
        status = driver.launch(audited, output=output or OutputOptions(), failed=failed)
    finally:
        watch.end()
    journals = read_journals(watch.folder, plan.workers, script)
    journals.waiting = watch.waiting
    return status, journals


def _script(plan: LaunchPlan) -> tuple[str, tuple[str, ...]]:
    """Return the script of a plan, and the program without a leading ``python``."""
    program = plan.program
    if plan.module:
        return "", ("-m", *program)
    if Path(program[0]).name.startswith("python") and len(program) > 1:
        program = program[1:]
        if program[0] == "-u":
            program = program[1:]
        if program[:1] == ("-m",):
            return "", program
    if not program[0].endswith(".py"):
        raise LaunchError("rueda check", expected="a Python script such as train.py", got=program[0], do="name it")
    resolve(program)  # refuses a script that does not exist
    return program[0], program


@dataclass
class Watch:
    """Looks at the workers' places; asks all to stop once they wait in vain, or have made enough updates.

    Args:
        folder: where the workers write.
        size: the number of workers.
        patience: seconds for which all must be idle in collectives.
        waiting: the places of all ranks, once they wait in vain.
    """

    folder: Path
    size: int
    patience: float = PATIENCE
    waiting: dict[int, str] = field(default_factory=dict)
    _since: dict[int, tuple[Any, float, float]] = field(default_factory=dict)
    _ended: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._look, name="rueda-check", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End the thread."""
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            now = self._places()
            if now and self._wait_in_vain(now):
                self.waiting = dict.fromkeys(range(self.size), "")
                self.waiting |= {rank: one["place"] for rank, one in now.items() if not self._has_ended(rank)}
                self._stop(now)
                return
            if self._has_made_enough():
                self._stop(now)
                return

    def _places(self) -> dict[int, dict[str, Any]]:
        found = {}
        for rank in range(self.size):
            with suppress(OSError, ValueError):
                found[rank] = json.loads((self.folder / f"rank-{rank}.now").read_text(encoding="utf-8"))
        return found

    def _has_ended(self, rank: int) -> bool:
        return (self.folder / f"rank-{rank}.{ENDED}").exists()

    def _wait_in_vain(self, now: dict[int, dict[str, Any]]) -> bool:
        """Return whether every rank that still runs is idle in a collective, and has been for a while."""
        moment = time.monotonic()
        running = [rank for rank in now if not self._has_ended(rank)]
        for rank in running:
            one = now[rank]
            state = (one["place"], one["progress"], one["collective"])
            known = self._since.get(rank)
            if known is None or known[0] != state or one["processor"] - known[2] > _IDLE * max(1.0, moment - known[1]):
                self._since[rank] = (state, moment, one["processor"])
        if len(now) < self.size or not running:
            return False
        return all(now[rank]["collective"] and moment - self._since[rank][1] > self.patience for rank in running)

    def _has_made_enough(self) -> bool:
        """Return whether every rank that still runs waits after its last update."""
        return all(
            self._has_ended(rank) or (self.folder / f"rank-{rank}.{LIMIT}").exists() for rank in range(self.size)
        )

    def _stop(self, now: dict[int, dict[str, Any]]) -> None:
        (self.folder / STOP).touch()
        if self._ended.wait(_KILL_SECONDS):
            return
        for rank, one in now.items():
            if not self._has_ended(rank):
                with suppress(OSError):
                    os.kill(one["process"], signal.SIGKILL)
