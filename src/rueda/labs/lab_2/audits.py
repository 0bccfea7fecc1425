"""Runs a script of :mod:`.scripts` on two workers: what each rank prints, and what ``rueda check`` finds.

A start costs seconds, so a script that has run once in this process is not run again. Results of all scripts are also
stored with the package (:data:`STORED`, made by ``python -m rueda.labs.lab_2.audits``), for pages that cannot start
processes, and for what this machine cannot run, such as Keras where it is not installed.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rueda.check.audit.judge.judging import judge
from rueda.check.audit.launching import observed
from rueda.hvd.runner.launch_plan import plan_job
from rueda.labs.lab_2.scripts import ORDER, all_but, script
from rueda.records.environment import environment
from rueda.records.json_record import read_record
from rueda.records.script_check import ADVICE, FAILED, WARNING, ScriptCheck, Verdict
from rueda.world.launch import OutputOptions

WORKERS = 2
STORED = files("rueda.labs") / "stored" / "lab_2_audits.json"
NAME = "train.py"
_one_at_a_time = threading.Lock()  # several readers of a lab share this process, and the cores


@dataclass(frozen=True, kw_only=True)
class Audit:
    """A run of a script on two workers."""

    style: str
    steps: tuple[str, ...]
    """the steps that the script has"""
    check: ScriptCheck
    printed: tuple[str, ...]
    """what each rank printed"""
    error: str = ""
    """the last line of the traceback, if the script has failed"""
    seconds: float = 0.0
    """from the start of the processes to their end"""
    live: bool = True
    """whether it ran here, now; otherwise it was stored"""
    digest: str = ""
    """of the script's text"""

    @property
    def found(self) -> list[Verdict]:
        """The mistakes, warnings and pieces of advice, the gravest first."""
        return self.check.with_status(FAILED, WARNING, ADVICE)

    def epochs(self) -> list[list[tuple[float, float]]]:
        """Return, for each rank, the test accuracy and the size of the weights of each epoch that it printed."""
        pattern = re.compile(r"epoch \d+: test accuracy ([\d.]+), size of the weights ([\d.]+)")
        return [[(float(a), float(b)) for a, b in pattern.findall(text)] for text in self.printed]


def can_run(style: str) -> bool:
    """Return whether this machine has what a script of this style imports."""
    return style != "keras" or find_spec("keras") is not None


@cache
def audit(style: str, steps: tuple[str, ...], *, live: bool = True) -> Audit:
    """Run a script on two workers under ``rueda check``, or read its stored result.

    Args:
        style: ``ddp``, ``horovod`` or ``keras``.
        steps: the steps that the script has, and variants of them.
        live: run it here and now, if this machine can.
    """
    if not live or not can_run(style):
        return stored(style, steps)
    with _one_at_a_time:
        return run(style, steps)


def run(style: str, steps: tuple[str, ...]) -> Audit:
    """Run a script on two workers under ``rueda check``."""
    folder = Path(tempfile.mkdtemp(prefix="rueda-lab-"))
    try:
        file = folder / NAME
        file.write_text(script(style, steps), encoding="utf-8")
        plan = replace(plan_job([str(file)], workers=WORKERS), directory=str(folder))
        started = time.perf_counter()
        status, journals = observed(plan, updates=0, output=OutputOptions(folder=folder / "output"))
        seconds = time.perf_counter() - started
        checks = tuple(_relative(one, folder) for one in judge(journals))
        written = {path.name: path.read_text(encoding="utf-8") for path in sorted((folder / "output").rglob("*.*"))}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    command = f"rueda check -np {WORKERS} {NAME}"
    found = ScriptCheck(
        script=NAME, workers=WORKERS, script_status=status, checks=checks, command=command, environment=environment(),
    )  # fmt: skip
    printed = tuple(_output(written, rank) for rank in range(WORKERS))
    return Audit(
        style=style, steps=steps, check=found, seconds=seconds, error=_error(printed) if status else "",
        printed=tuple("".join(_epoch_lines(text)) for text in printed), digest=digest_of(style, steps),
    )  # fmt: skip


@cache
def _all_stored() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(STORED.read_text(encoding="utf-8"))
    return found


def stored(style: str, steps: tuple[str, ...]) -> Audit:
    """Return the stored result of a script."""
    return replace(read_record(Audit, _all_stored()[_key(style, steps)], "audit"), live=False)


def all_scripts() -> list[tuple[str, tuple[str, ...]]]:
    """Return every script of the lab, as its style and its steps: the way there, and the whole without each step."""
    found = []
    for style in ("ddp", "horovod", "keras"):
        found += [(style, ORDER[:number]) for number in range(len(ORDER) + 1)]
        found += [(style, all_but(name)) for name in ORDER if style != "keras"]
    found += [(style, (*ORDER, "slices")) for style in ("ddp", "horovod")]
    found.append(("ddp", (*ORDER, "slices", "uneven")))
    return found


def digest_of(style: str, steps: tuple[str, ...]) -> str:
    """Return a digest of a script's text, by which a stored result is known to be that of this script."""
    return hashlib.sha256(script(style, steps).encode()).hexdigest()[:16]


def _key(style: str, steps: tuple[str, ...]) -> str:
    return f"{style} {digest_of(style, steps)}"  # some scripts have several descriptions


def _relative(verdict: Verdict, folder: Path) -> Verdict:
    """Return a verdict that names the script without its folder."""
    places = tuple(Path(place).name for place in verdict.where)
    return replace(verdict, what=verdict.what.replace(f"{folder}/", ""), where=places)


def _output(written: dict[str, str], rank: int) -> str:
    return "".join(text for name, text in written.items() if re.search(rf"\b{rank}\b", name))


def _epoch_lines(text: str) -> list[str]:
    return [line for line in text.splitlines(keepends=True) if line.startswith("epoch ")]


def _error(printed: tuple[str, ...]) -> str:
    """Return the line of a traceback that names the error."""
    for text in printed:
        lines = [line for line in text.splitlines() if re.match(r"[\w.]*(Error|Exception)\b.*:", line)]
        if lines:
            return lines[-1]
    return ""


def _store() -> None:
    """Run every script of which no result from a clean commit is stored, and store it; a modified tree is refused."""
    if not _is_clean(environment()):
        sys.exit(f"{STORED}: expected a clean commit, got {environment()['commit']}; commit first")
    file = Path(str(STORED))
    file.parent.mkdir(exist_ok=True)
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    known = {key: one for key, one in known.items() if _is_clean(one["check"]["environment"])}
    found: dict[str, Any] = {}
    for style, steps in all_scripts():
        key = _key(style, steps)
        if key in known:
            found[key] = known[key]
        elif key not in found:
            result = run(style, steps)
            found[key] = asdict(result)
            names = ", ".join(one.check for one in result.found) or "nothing"
            print(f"{style} {steps}: {result.seconds:.1f} s; found {names} {result.error}", flush=True)
            text = json.dumps({**known, **found}, separators=(",", ":"), default=str)
            file.write_text(text + "\n", encoding="utf-8")
    file.write_text(json.dumps(found, separators=(",", ":"), default=str) + "\n", encoding="utf-8")


def _is_clean(about: dict[str, Any]) -> bool:
    return about["commit"] is not None and not about["commit"].endswith("+")


if __name__ == "__main__":
    _store()
