"""Trainings that end when something fails and are resumed: forked workers, rehearsals, and ``rueda train`` itself.

The same training without a fault is the truth: a resumed one has the same parameters, bit for bit. A repair by the
majority is the exception, since the others had already taken part in updates with the wrong worker; its accuracy must
be within the spread over seeds.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from commandline import environ
from faults import injected
from faults.fit_worker import BATCH, EXAMPLES, RECIPE
from faults.outcomes import (
    ANEW,
    NOT_REACHED,
    REPAIRED,
    RESUMED,
    WENT_BACK,
    WENT_ON,
    Outcome,
    check_run,
    left_in_shared_memory,
    living,
    measure_recovery,
    outcomes_of,
    read_events,
)
from faults.plan import JOBS, PlannedJob
from forked import forked
from launching import Started
from ports import free_port
from rueda.records import Run
from rueda.train.checkpoint import latest_checkpoint

TESTS = Path(__file__).parents[1]
SECONDS = 90.0
"""a job that takes longer than this hangs"""
STALL_SECONDS = 4.0
SCRIPT = "import sys; from faults.fit_worker import work; work(*sys.argv[1:])"
TASK = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
from faults.injected import arm
from faults.fit_worker import EXAMPLES
from tinytask import tiny_task
arm()
task = tiny_task(EXAMPLES)
"""


class Ended(NamedTuple):
    """How an attempt ended: its exit status, 0 if all workers finished; what it said; when; and who hung."""

    status: int
    said: str
    time: float
    problem: str = ""


def run_forked(code: str, size: int, words: Sequence[str], **variables: str) -> Ended:
    """Run a script in forked workers until all have ended; those that hang are killed."""
    port = free_port()
    ranks = [
        environ(
            RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size),
            MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RUEDA_STALL_TIMEOUT=f"{STALL_SECONDS:g}", RUEDA_TIMEOUT="20",
            **variables,
        )
        for rank in range(size)
    ]  # fmt: skip
    if size == 1:
        ranks = [{**ranks[0], "WORLD_SIZE": "1"}]
    with forked(code, ranks, *words) as started:
        statuses, said, first = [], [], None
        deadline, problem = time.monotonic() + SECONDS, ""
        waiting = list(started)
        while waiting and time.monotonic() < deadline:
            for one in list(waiting):
                if one.has_ended(0.02):
                    waiting.remove(one)
                    first = first or time.monotonic()
        if waiting:
            problem = f"{len(waiting)} of {size} workers hang after {SECONDS:g} s"
        for rank, one in enumerate(started):
            if one in waiting:
                one.kill()
            status, _, err = one.wait()
            statuses.append(status)
            said += [f"[{rank}] {line}" for line in err.splitlines()[-3:]]
    failed = [status for status in statuses if status]
    return Ended(failed[0] if failed else 0, "\n".join(said), first or time.monotonic(), problem)


def run_command(folder: Path, control: Path, resume: bool, variables: dict[str, str]) -> Ended:
    """Run ``rueda train`` on 2 workers, as a person would."""
    task = control / "task.py"
    task.write_text(TASK)
    words = ["train", str(task), "--workers", "2", "--run", str(folder), "--json"]
    words += ["--stall-timeout", f"{STALL_SECONDS:g}"]
    if resume:
        words.append("--resume")
    else:
        recipe = control / "recipe.toml"
        RECIPE.save(recipe)
        words += ["--recipe", str(recipe)]
    mark = f"{control.name}-{time.monotonic_ns()}"
    launched = subprocess.Popen(
        [sys.executable, "-m", "rueda", *words], env=environ(RUEDA_TEST_MARK=mark, **variables), text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    started = Started(launched, mark)
    problem = ""
    try:
        status, _, err = started.end(SECONDS)
    except subprocess.TimeoutExpired:
        problem, status, err = f"rueda train hangs after {SECONDS:g} s", -1, ""
        os.killpg(launched.pid, signal.SIGKILL)
    ended = time.monotonic()
    if left := started.left(20.0):
        problem += f" left behind: {left}"
        started.signal_all(signal.SIGKILL)
    return Ended(status, "\n".join(err.splitlines()[-4:]), ended, problem)


@contextlib.contextmanager
def own_disk(folder: Path, wanted: bool) -> Iterator[None]:
    """Mount a small file system of its own on a folder, which a fault can fill or make read-only."""
    folder.mkdir(parents=True)
    if not wanted:
        yield
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        mend(folder)
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


def mend(folder: Path) -> None:
    """Take back what a fault did to the disk: the bind mount that is read-only, and what fills it."""
    mounted = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for _ in range(mounted.count(str(folder)) - 1):
        subprocess.run(["umount", str(folder)], check=True)
    (folder / "filler").unlink(missing_ok=True)


def needs_root(job: PlannedJob) -> bool:
    return any(fault.kind.startswith("disk") for fault in job.faults)


@cache
def clock_library(folder: Path) -> Path:
    """Compile the library that sets the clock back."""
    made = folder / "clock.so"
    source = Path(__file__).with_name("clock.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(made), str(source), "-ldl"], check=True)
    return made


def run_training(job: PlannedJob, place: Path) -> list[Outcome]:
    """Run a training with the faults of a job, resume it until it has finished, and say what became of each."""
    kind = JOBS[job.name]
    disk, control = place / "disk", place / "control"
    shutil.rmtree(place, ignore_errors=True)
    control.mkdir(parents=True)
    found, problems, last = outcomes_of(job), list[str](), None
    with own_disk(disk, needs_root(job)):
        run = disk / "run"
        file = injected.order(control, run, [fault.told() for fault in job.faults])
        variables = {injected.VARIABLE: str(file)}
        if job.name == "train-2" and any(fault.how == "set_clock_back" for fault in job.faults):
            (control / "clock").write_bytes(bytes(8))
            variables |= {"RUEDA_CLOCK": str(control / "clock"), "LD_PRELOAD": str(clock_library(place.parent))}
        for number in range(len(job.faults) + 3):
            resume = (run / "recipe.toml").exists()
            fired = {row["number"] for row in read_events(control) if row["what"] == "fault"}
            if job.name == "train-2":
                ended = run_command(run, control, resume, variables)
            else:
                ended = one_attempt(job.name, run, resume, variables)
            rows = read_events(control)
            blamed = [row for row in rows if row["what"] == "fault" and row["number"] not in fired]
            if ended.problem:
                (found[blamed[-1]["number"]].problems if blamed else problems).append(ended.problem)
            if ended.status == 0:
                break
            mend(disk)
            if blamed:
                last = found[blamed[-1]["number"]]
                note_end(found[blamed[-1]["number"]], blamed[-1], ended)
            elif "checkpoints are damaged" in ended.said and last is not None:
                last.outcome, last.said = ANEW, ended.said[-600:]  # as the error advises
                shutil.rmtree(run)
            else:
                problems.append(f"attempt {number + 1} failed without a fault: {ended.said[-600:]}")
                break
        else:
            problems.append("it never finished")
        rows = read_events(control)
        measure_recovery(found, rows, BATCH * kind.workers)
        if not problems:
            problems += judge(job, run, found)
        pids = {row["pid"] for row in rows}
        if left := left_in_shared_memory(pids):
            problems.append(f"left in shared memory: {left}")
        if alive := living(pids):
            problems.append(f"processes that still run: {alive}")
    for one in found.values():
        one.problems += problems
    return list(found.values())


def one_attempt(name: str, run: Path, resume: bool, variables: dict[str, str]) -> Ended:
    """Run forked workers of a kind of job until they end."""
    size = JOBS[name].workers
    if name.startswith("hvd"):
        return run_forked("from faults.hvd_loop import main; main()", size, [], **variables)
    is_rehearsed = JOBS[name].family == "rehearsed"
    words = fit_words(name, run, resume)
    return run_forked(SCRIPT, 1 if is_rehearsed else size, words, **variables)


def fit_words(name: str, run: Path, resume: bool) -> list[str]:
    """Return the arguments of a worker of a kind of job."""
    kind = JOBS[name]
    rehearsed = kind.workers if kind.family == "rehearsed" else 0
    return [str(run), "resume" if resume else "new", str(rehearsed), str(epochs_of(name))]


def epochs_of(name: str) -> int:
    """Return how many epochs a kind of job trains: its updates over those of an epoch."""
    return JOBS[name].steps // (EXAMPLES // (BATCH * JOBS[name].workers))


def note_end(one: Outcome, row: dict[str, Any], ended: Ended) -> None:
    """Note that a fault has ended the job, and whether somebody was told why."""
    one.outcome, one.said = RESUMED, ended.said[-600:]
    one.detected_seconds = ended.time - row["time"]
    alone = JOBS[one.job].family == "rehearsed" or one.fault.how == "kill_driver"  # then the shell says "Killed"
    if not ended.said.strip() and not alone:
        one.problems.append(f"it ended with status {ended.status} and said nothing")


def judge(job: PlannedJob, run: Path, found: dict[int, Outcome]) -> list[str]:
    """Return what is wrong with the result of a training: against the same one without a fault, bit for bit."""
    problems = check_run(run, 0 if job.name.startswith("hvd") else epochs_of(job.name))
    whole, result = reference(job.name, run.parents[2]), final_state(run)
    for one in found.values():
        if one.outcome == NOT_REACHED:
            one.problems.append("the training ended before it")
    is_equal = whole.keys() == result.keys() and all(torch.equal(whole[name], result[name]) for name in whole)
    if not job.name.startswith("hvd"):
        incidents = [one for one in Run(run).incidents() if one.what == "silent-error"]
        flips = [one for one in found.values() if one.fault.how == "flip_bit" and one.outcome == WENT_ON]
        for one, incident in zip(flips, incidents, strict=False):
            one.outcome, one.said = (WENT_BACK if "back to update" in incident.text else REPAIRED), incident.text
        if len(incidents) < len(flips):
            problems.append(f"{len(flips)} flipped bits, but {len(incidents)} were found")
        row = Run(run).rows("epoch")[-1]
        lost = JOBS[job.name].steps * BATCH * JOBS[job.name].workers - row.examples
        for one in found.values():
            one.lost = lost
        if any(one.outcome == REPAIRED for one in flips):
            low, high = accuracy_interval(job.name)
            if not low <= (row.test_accuracy or 0.0) <= high:
                problems.append(f"accuracy {row.test_accuracy} is not within {low:.3f} to {high:.3f}, the spread")
            return problems
    if not is_equal:
        problems.append("the parameters differ from those of the training without a fault")
    return problems


def final_state(run: Path) -> dict[str, torch.Tensor]:
    newest = latest_checkpoint(run / "checkpoints")
    assert newest is not None
    state: dict[str, torch.Tensor] = newest[1]["model"]
    return state


def prepare(names: Collection[str], place: Path) -> None:
    """Run the trainings without faults that those of some kinds are compared with, and compile the clock."""
    for name in names:
        if JOBS[name].steps:
            reference(name, place)
            if name == "fit-3":
                accuracy_interval(name)
    clock_library(place)


@cache
def reference(name: str, place: Path) -> dict[str, torch.Tensor]:
    """Return the final parameters of the training without a fault."""
    control = place / f"reference-{name}"
    run = control / "disk" / "run"
    file = injected.order(control, run, [])
    ended = one_attempt("fit-2" if name == "train-2" else name, run, False, {injected.VARIABLE: str(file)})
    assert ended.status == 0, ended.said
    return final_state(run)


@cache
def accuracy_interval(name: str) -> tuple[float, float]:
    """Return the interval in which the accuracy of one more training lies, from 12 seeds: 4 standard deviations."""
    import statistics

    import rueda
    from tinytask import tiny_task

    values = []
    for seed in range(12):
        recipe = RECIPE.change(workers=JOBS[name].workers, seed=seed)
        row = rueda.fit(tiny_task(EXAMPLES), recipe, rehearse=True, progress=False).row
        assert row is not None and row.test_accuracy is not None
        values.append(row.test_accuracy)
    middle, spread = statistics.mean(values), statistics.stdev(values)
    return middle - 4 * spread, middle + 4 * spread
