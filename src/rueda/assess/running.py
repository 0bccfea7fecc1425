"""The run of a submission, in a process of its own: workers that are confined and observed, and a clock beside them."""

from __future__ import annotations

import json
import os
import resource
import secrets
import signal
import stat
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rueda import jobs
from rueda.assess.confinement import leave_network, spare_user
from rueda.assess.seal import keep_sealed
from rueda.assess.settings import PREPARATION
from rueda.check.audit.judge.journals import read_journals
from rueda.check.audit.judge.judging import judge
from rueda.check.audit.launching import Watch, observed_in
from rueda.check.audit.report import unobserved
from rueda.check.audit.watch.journal import ENDED
from rueda.errors import LaunchError
from rueda.records.script_check import Verdict
from rueda.world.cores import usable_cores
from rueda.world.launch import Host, LaunchPlan, OutputOptions
from rueda.world.launch.failure import Failure, last_traceback

_BEGUN = "begun"
_START_SECONDS = 120.0  # for the workers to load torch, on a busy machine
_GRACE = 2.0
_PLACE_BYTES = 1 << 16
_OUTPUT_BYTES = 1 << 26  # of each file that this process writes: what a worker prints
_MORE = 1.1  # of the limit, after which a script is ended: it has failed by then, and is told by how much


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A script that is to be run.

    Args:
        folder: the grader's, with ``given`` (the script, the task, the data) in it.
        workers: number of workers.
        within: seconds of training.
        shape: the shape of one example.
    """

    folder: Path
    workers: int
    within: float
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class RunAnswer:
    """What came of it.

    Args:
        status: the exit status of the script.
        error: the last line of its traceback.
        stopped: why the grader ended it; empty if it ended by itself.
        checks: the verdicts of ``rueda check``.
        isolation: what kept the script apart.
        touched: what it has changed of the observation.
        unseen: what could not be observed.
    """

    status: int
    error: str = ""
    stopped: str = ""
    checks: tuple[Verdict, ...] = ()
    isolation: tuple[str, ...] = ()
    touched: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()


def run_apart(request: RunRequest) -> RunAnswer:
    """Run a submission in another process."""
    return jobs.run(jobs.Job(function=f"{__name__}:run_here", request=request, answer=RunAnswer), show=True)


def run_here(request: RunRequest) -> RunAnswer:
    """Run a submission and judge what its workers have noted."""
    folder, is_root = request.folder, os.geteuid() == 0
    user = spare_user(os.getpid()) if is_root else None
    alone = leave_network()
    journal, work, keys = folder / "journal", folder / "work", {}
    for one in (journal, work, work / ".scratch"):
        one.mkdir(mode=0o700)
        if user is not None:
            os.chown(one, user, user)
    for rank in range(request.workers):
        keys[rank] = secrets.token_bytes(32)
        own = journal / f"rank-{rank}.key"
        own.touch(mode=0o600)
        own.write_text(keys[rank].hex())
    seconds = int((PREPARATION + _MORE * request.within + _START_SECONDS) * usable_cores())
    options = {
        "user": user, "given": str(folder / "given"), "processor_seconds": seconds, "shape": list(request.shape)
    }  # fmt: skip
    plan = LaunchPlan(
        program=(str(folder / "given" / "train.py"),), hosts=(Host(name="localhost", slots=request.workers),),
        environment={"RUEDA_ASSESS": json.dumps(options)}, directory=str(work), grace=_GRACE,
    )  # fmt: skip
    watch = GradingWatch(journal, request.workers, within=request.within)
    failures: list[str] = []
    resource.setrlimit(resource.RLIMIT_FSIZE, (_OUTPUT_BYTES, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    try:
        status, journals = observed_in(
            watch, plan, worker="rueda.assess.worker", output=OutputOptions(folder=folder / "output"),
            failed=lambda failure, words: failures.append(_error(failure, words)),
        )  # fmt: skip
    except LaunchError as error:  # the launcher could not go on, such as with the output
        failures.append(str(error))
        status, journals = 1, read_journals(journal, request.workers)
    finally:
        if user is not None:
            _remove_shared_memory(user)
    damage = keep_sealed(journal, keys, complete=status == 0 and not watch.why)
    journals = replace(journals, notes=read_journals(journal, request.workers).notes)
    touched = [f"{note['what']} ({note['where']})" for _, note in journals.flat("touched")]
    forged = any("forged" in note for notes in journals.notes for note in notes)
    touched += [damage] * bool(damage) + ["observations were forged"] * forged
    if status == 0 and not watch.why and not all(journals.of_kind("end")):
        touched.append("the observation was cut off before its end")
    held = [tuple(note["held"]) for _, note in journals.flat("isolation")]
    try:
        checks = judge(journals)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        checks, touched = [], [*touched, "the journals of the observation do not fit together"]

    def plain(text: str) -> str:
        """Leave out the grader's folders."""
        return text.replace(f"{folder / 'given'}/", "").replace(f"{work}/", "")

    return RunAnswer(
        status=status, error=plain(failures[0]) if failures else "", stopped=plain(watch.why),
        checks=tuple(
            Verdict(one.check, one.status, plain(one.what), tuple(map(plain, one.where)), one.cure) for one in checks
        ),
        isolation=min(held, key=len) if len(held) == request.workers else (("no network",) if alone else ()),
        touched=tuple(map(plain, dict.fromkeys(touched))),
        unseen=tuple(unobserved(journals)),
    )  # fmt: skip


@dataclass
class GradingWatch(Watch):
    """Ends a script that trains longer than it may, or does not begin.

    It never signals a process by a number that a worker wrote: it asks the launcher in this process to stop.

    Args:
        within: seconds of training.
        why: why the script was ended.
    """

    within: float = 300.0
    why: str = ""
    _began: float = field(default_factory=time.monotonic)
    _trains: float | None = None

    def _places(self) -> dict[int, dict[str, Any]]:
        found = {rank: _place(self.folder / f"rank-{rank}.now") for rank in range(self.size)}
        return {rank: one for rank, one in found.items() if one}

    def _has_made_enough(self) -> bool:
        now = time.monotonic()
        marks = [self.folder / f"rank-{rank}.{_BEGUN}" for rank in range(self.size)]
        if self._trains is None and any(one.exists() for one in marks):
            self._trains = now
        if self._trains is not None and now - self._trains > _MORE * self.within:
            self.why = f"it still trained {now - self._trains:.0f} s after its first step"
        elif self._trains is None and now - self._began > _START_SECONDS + PREPARATION + self.within:
            self.why = f"it had not begun to train {now - self._began:.0f} s after its start"
        return bool(self.why)

    def _stop(self, now: dict[int, dict[str, Any]]) -> None:
        if not self.why:
            self.why = "its workers waited for each other in vain"
        idle = {str(one.get("place")) for rank, one in now.items() if one.get("place") and not self._has_ended(rank)}
        if idle:
            self.why += f", idle at {', '.join(sorted(idle))}"
        os.kill(os.getpid(), signal.SIGTERM)
        self._ended.wait()

    def _has_ended(self, rank: int) -> bool:
        return (self.folder / f"rank-{rank}.{ENDED}").exists()


def _place(file: Path) -> dict[str, Any]:
    """Return what a worker says about its place; nothing if it is not what the observation writes."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as stream:
            found = json.loads(stream.read(_PLACE_BYTES)) if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict) or not isinstance(found.get("processor"), (int, float)):
        return {}
    return found if found.keys() >= {"place", "progress", "collective"} else {}


def _error(failure: Failure, words: str) -> str:
    lines = [line.strip() for line in last_traceback(words) if line.strip()]
    return f"rank {failure.rank}: {lines[-1][:300]}" if lines else f"rank {failure.rank}: status {failure.status}"


def _remove_shared_memory(user: int) -> None:
    """Remove what the script's user has left in shared memory."""
    for one in Path("/dev/shm").glob("*"):
        with suppress(OSError):
            if one.lstat().st_uid == user:
                one.unlink()
