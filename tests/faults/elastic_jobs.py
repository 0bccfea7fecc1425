"""Elastic jobs that are disturbed from outside: workers and hosts are lost and come back, again and again."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

from faults import injected, links, points
from faults.outcomes import REFORMED, WENT_ON, Outcome, check_run, left_in_shared_memory, living, outcomes_of
from faults.plan import JOBS, Fault, PlannedJob
from faults.train_elastic_task import make_task
from faults.training import clock_library
from faults.watched import TESTS, HangingError, Row, WatchedJob, module, rueda_run, watched
from namespaces import Hosts
from rueda.train.checkpoint import latest_checkpoint
from rueda.train.training import Training
from rueda.world import World
from rueda.world.signals import shell_status

TIMEOUT = 4.0
"""``--timeout`` of the jobs: what is silent for so long is given up"""
GOES_ON_SECONDS = 10.0
"""the survivors of a lost host must train again so soon after it was noticed"""
TOLERANCE = 1e-8
_reference_lock = threading.Lock()  # a model is drawn from random numbers that all streams of the campaign share
NOTICED = ("is lost", "was ended by", "was stopped", "failed with", "did not leave", "asks for a new world")


class Members(NamedTuple):
    """The workers of a world: its generation, their processes and their hosts, by rank."""

    generation: int
    pids: dict[int, int]
    hosts: dict[int, str]


TASK = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
from faults.train_elastic_task import arm, make_task
arm()
task = make_task({{workers}})
"""


def is_training(job: PlannedJob) -> bool:
    """Return whether a job is ``rueda train --elastic``, which ends by a signal and has checkpoints."""
    return job.name.startswith("train-")


def command_of(job: PlannedJob, control: Path, hosts: Hosts | None) -> list[str]:
    size = JOBS[job.name].workers
    limits = ["--timeout", f"{TIMEOUT:g}", "--min-np", str(1 if hosts is None else size // 2)]
    if hosts is not None:
        limits += ["-H", f"hostA:{size // 2},hostB:{size // 2}", "--ssh", hosts.ssh]
    if is_training(job):
        (control / "task.py").write_text(TASK.format(workers=size))
        words = ["train", "task.py", "--elastic", "--workers", str(size), "--run", "run", *limits]
        command = [sys.executable, "-m", "rueda", *words]
    else:
        program = module("hvd_elastic_loop" if JOBS[job.name].family == "hvd" else "elastic_loop")
        limits += ["--max-np", str(size)] if hosts is None else ["-x", "PYTHONPATH"]
        command = rueda_run(*limits, *program)
    return command if hosts is None else hosts.inside(command)


def run_elastic(job: PlannedJob, place: Path, hosts: Hosts | None) -> list[Outcome]:
    """Run an elastic job with its faults, and say what became of each."""
    kind, control, found = JOBS[job.name], place / "control", outcomes_of(job)
    shutil.rmtree(place, ignore_errors=True)
    file = injected.order(control, place / "run", [])
    variables = {injected.VARIABLE: str(file)}
    if any(fault.how == "set_clock_back" for fault in job.faults):
        (control / "clock").write_bytes(bytes(8))
        variables |= {"RUEDA_CLOCK": str(control / "clock"), "LD_PRELOAD": str(clock_library(place.parent))}
    problems: list[str] = []
    with watched(command_of(job, control, hosts), control, variables) as launched:
        try:
            begun = 0.0
            for fault in job.faults:
                begun = suffer(launched, fault, found[fault.number], hosts, kind.workers, begun)
            (control / "enough").touch()
            problems += end(launched, signal.SIGTERM if is_training(job) else None)
        except HangingError as error:
            problems.append(str(error))
        finally:
            if hosts is not None:
                for number in range(2):
                    links.join(hosts, number)
        pids = {row["pid"] for row in launched.rows if "pid" in row}
    time.sleep(0.1)
    count_again(found, launched, points.GLOBAL_BATCH if kind.family == "elastic" else 0)
    problems += [f"left in shared memory: {left}" for left in [left_in_shared_memory(pids)] if left]
    problems += [f"processes that still run: {alive}" for alive in [living(pids)] if alive]
    lost, wrong = judge_training(control, kind.workers) if is_training(job) else judge(control, kind.family)
    for one in found.values():
        one.lost = lost
        one.problems += problems + wrong
    return list(found.values())


def suffer(
    job: WatchedJob, fault: Fault, outcome: Outcome, hosts: Hosts | None, size: int, begun: float
) -> float:  # fmt: skip
    """Wait for the update of a fault, let it happen, and wait until the job goes on; return when it did.

    A job of hosts is disturbed when all workers are there; one on this machine as soon as two are.
    """
    least = 2 if hosts is None else size
    first = job.wait(lambda row: row["what"] == "step" and row["size"] >= least, f"{least} workers", after=begun)
    job.wait(
        lambda row: row["what"] == "step" and row["size"] >= least and row["step"] >= first["step"] + fault.step,
        f"update {first['step'] + fault.step} on {least} workers", after=first["time"],
    )  # fmt: skip
    before = members(job)
    now = time.monotonic()
    job.rows.append({"what": "fault", "number": fault.number, "time": now})
    lost = strike(job, fault, before, hosts)
    if not lost:
        went_on = job.wait(lambda row: row["what"] == "step", "an update", after=now + 0.02)
        outcome.outcome = REFORMED if went_on["generation"] > before.generation else WENT_ON
        outcome.recovered_seconds = went_on["time"] - now
        return float(went_on["time"])

    def is_without(row: Row) -> bool:
        return row["what"] == "step" and not lost & set(members(job, row["generation"]).pids.values())

    went_on = job.wait(is_without, "an update of the survivors", after=now)
    back = time.monotonic() if fault.how == "cut" else now
    if fault.how == "cut" and hosts is not None:
        links.join(hosts, fault.rank)
    outcome.outcome, outcome.recovered_seconds = REFORMED, went_on["time"] - now
    survivors = set(before.pids.values()) - lost
    if gone := survivors - set(members(job, went_on["generation"]).pids.values()):
        outcome.problems.append(f"survivors {sorted(gone)} did not keep their processes")
    if hosts is not None and went_on["size"] != size // 2:
        outcome.problems.append(f"it went on with {went_on['size']} workers instead of {size // 2}")
    noticed = job.first_line(NOTICED, now)
    if noticed is None:
        outcome.problems.append("the launcher said nothing")
    else:
        outcome.detected_seconds, outcome.said = noticed[0] - now, noticed[1]
        if hosts is not None and outcome.recovered_seconds - outcome.detected_seconds > GOES_ON_SECONDS:
            outcome.problems.append(f"it went on more than {GOES_ON_SECONDS:g} s after the detection")
    if hosts is None:
        return float(went_on["time"])
    full = job.wait(
        lambda row: row["what"] == "step" and row["size"] == size, f"{size} workers again", after=went_on["time"]
    )
    outcome.full_seconds = full["time"] - back
    return float(full["time"])


def strike(job: WatchedJob, fault: Fault, before: Members, hosts: Hosts | None) -> set[int]:
    """Let a fault happen, and return the processes that are lost by it."""
    if hosts is not None:
        name = f"host{links.LETTERS[fault.rank].upper()}"
        there = {pid for rank, pid in before.pids.items() if before.hosts[rank] == name}
        if fault.how == "cut":
            links.cut(hosts, fault.rank)
        elif fault.how == "crash":
            links.crash(hosts, fault.rank, job.started.mark)
        elif fault.how == "slow":
            links.slow(hosts, fault.rank, fault.seconds)
        else:
            links.lose_packets(hosts, fault.rank, fault.seconds, fault.number)
        return there if fault.how in ("cut", "crash") else set()
    pid = before.pids[fault.rank % len(before.pids)]
    if fault.how == "kill":
        os.kill(pid, signal.SIGKILL)
    elif fault.how == "stop":
        os.kill(pid, signal.SIGSTOP)
        if fault.seconds:
            time.sleep(fault.seconds)
            os.kill(pid, signal.SIGCONT)
            return set()
    else:
        injected.command(job.control, pid, fault.told())
        return {pid} if fault.how == "run_out_of_memory" else set()
    return {pid}


def members(job: WatchedJob, generation: int | None = None) -> Members:
    """Return the workers of a generation, by default of the last one."""
    entered = [row for row in job.rows if row["what"] == "entered"]
    number = max(row["generation"] for row in entered) if generation is None else generation
    there = [row for row in entered if row["generation"] == number]
    return Members(number, {row["rank"]: row["pid"] for row in there}, {row["rank"]: row["host"] for row in there})


def end(job: WatchedJob, number: signal.Signals | None) -> list[str]:
    """Let a job end, by a signal to the launcher or by itself, and return what was wrong with that."""
    expected = 0
    if number is not None:
        job.started.process.send_signal(number)
        expected = shell_status(-number)
    status = job.end(60.0)
    if status is None:
        return ["the job did not end within 60 s"]
    problems = [] if status == expected else [f"the job ended with status {status}: {job.said()}"]
    if left := job.started.left(10.0):
        problems.append(f"left behind: {left}")
    return problems


def count_again(found: dict[int, Outcome], job: WatchedJob, examples: int) -> None:
    """Count the examples of updates that were made again after each fault."""
    current, furthest = None, 0
    for row in sorted(job.rows, key=lambda row: float(row["time"])):
        if row["what"] == "fault":
            current = found[row["number"]]
        elif row["what"] == "step":
            if row["step"] <= furthest and current is not None:
                current.again += examples or 6 * row["size"]
            furthest = max(furthest, row["step"])


def judge(control: Path, family: str) -> tuple[int, list[str]]:
    """Return how many examples were lost, and what is wrong with the result."""
    if not (control / "result.pt").exists():
        return 0, ["there is no result"]
    result = torch.load(control / "result.pt", weights_only=True)
    problems = []
    if result["lost"] or result["twice"]:
        problems.append(f"{result['lost']} examples lost, {result['twice']} trained twice")
    if family == "elastic":
        whole = points.vector(points.undisturbed(result["step"]))
        distance = float((result["model"] - whole).abs().max())
        if distance > TOLERANCE:
            problems.append(f"the parameters differ by {distance:.1e} from those of an undisturbed worker")
    else:
        low, high = accuracy_interval(result["epochs"])
        if not low <= result["accuracy"] <= high:
            problems.append(f"accuracy {result['accuracy']:.3f} is not within {low:.3f} to {high:.3f}, the spread")
    return int(result["lost"]), problems


def judge_training(control: Path, workers: int) -> tuple[int, list[str]]:
    """Return how many examples were lost, and what is wrong with the last checkpoint and the run folder.

    One worker that is never disturbed, with the same global batch, is the truth.
    """
    newest = latest_checkpoint(control / "run" / "checkpoints")
    if newest is None:
        return 0, ["there is no checkpoint"]
    state, steps = newest[1]["model"], newest[1]["place"]["step"]
    problems = check_run(control / "run", newest[1]["place"]["epoch"])
    lost = steps * points.GLOBAL_BATCH - newest[1]["place"]["examples"]
    task = make_task(workers)
    with _reference_lock:
        whole = Training(task, task.recipe.change(workers=workers), World())
        for _ in range(steps):
            if whole.step().epoch_ended:
                whole.end_epoch()
    distance = max(float((state[name] - value).abs().max()) for name, value in whole.model.state_dict().items())
    if distance > TOLERANCE:
        problems.append(f"the parameters differ by {distance:.1e} from those of an undisturbed worker")
    if lost:
        problems.append(f"{lost} examples lost" if lost > 0 else f"{-lost} examples counted twice")
    return max(0, lost), problems


@cache
def accuracy_interval(epochs: int, seeds: int = 12) -> tuple[float, float]:
    """Return the interval in which one more accuracy lies: 4 standard deviations over seeds of network and order."""
    import statistics

    steps = epochs * points.STEPS_PER_EPOCH
    values = [points.accuracy(points.undisturbed(steps, seed)) for seed in range(seeds)]
    middle, spread = statistics.mean(values), statistics.stdev(values)
    return middle - 4 * spread, middle + 4 * spread
