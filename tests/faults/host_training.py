"""A plain training on two hosts, whose link is cut, slow or lossy; after a cut it ends, and is resumed."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from faults import injected, links
from faults.fit_worker import BATCH
from faults.outcomes import Outcome, left_in_shared_memory, living, measure_recovery, outcomes_of
from faults.plan import JOBS, PAUSE_SECONDS, Fault, PlannedJob
from faults.training import STALL_SECONDS, Ended, fit_words, judge, note_end
from faults.watched import HangingError, WatchedJob, module, rueda_run, watched
from namespaces import Hosts

ORPHAN_SECONDS = 75.0
"""ssh notices a host that is gone after 45 s"""


def run_on_hosts(job: PlannedJob, place: Path, hosts: Hosts | None) -> list[Outcome]:
    """Run a training on two hosts with the faults of a job, resume it until it has finished, and judge it."""
    assert hosts is not None
    control, run = place / "control", place / "disk" / "run"
    shutil.rmtree(place, ignore_errors=True)
    file = injected.order(control, run, [], pause=PAUSE_SECONDS)
    found, problems, waiting, pids = outcomes_of(job), list[str](), list(job.faults), set[int]()
    rows = []
    for _ in range(len(job.faults) + 2):
        words = ["-H", "hostA:1,hostB:1", "--ssh", hosts.ssh, "--stall-timeout", f"{STALL_SECONDS:g}", "--grace", "5"]
        words += ["-x", "PYTHONPATH"]
        resume = (run / "recipe.toml").exists()
        program = [*module("fit_worker"), *fit_words(job.name, run, resume)]
        (control / "events.jsonl").unlink(missing_ok=True)
        with watched(hosts.inside(rueda_run(*words, *program)), control, {injected.VARIABLE: str(file)}) as launched:
            last = disturb(launched, waiting, hosts)
            status = launched.end(60.0)
            said = launched.said() or str(launched.lines[-3:])
            ended = Ended(-1 if status is None else status, said, time.monotonic())
            for number in range(2):
                links.join(hosts, number)
            if status is None:
                problems.append("the job did not end within 60 s")
            if left := launched.started.left(ORPHAN_SECONDS):
                problems.append(f"left behind: {left}")
        rows += sorted(launched.rows, key=lambda row: float(row["time"]))
        pids |= {row["pid"] for row in launched.rows if "pid" in row}
        if status == 0 or problems:
            break
        if last is None:
            problems.append(f"it failed without a fault: {ended.said[-600:]}")
            break
        note_end(found[last.number], {"time": launched.last_fault}, ended)
    measure_recovery(found, rows, BATCH * JOBS[job.name].workers)
    problems += [f"left in shared memory: {left}" for left in [left_in_shared_memory(pids)] if left]
    problems += [f"processes that still run: {alive}" for alive in [living(pids)] if alive]
    if not problems:
        problems += judge(job, run, found)
    for one in found.values():
        one.problems += problems
    return list(found.values())


def disturb(job: WatchedJob, waiting: list[Fault], hosts: Hosts) -> Fault | None:
    """Let faults happen at their updates until one of them ends the job; return the last."""
    last = None
    while waiting:
        try:
            row = job.wait(lambda row: row["what"] == "step" and row["step"] >= waiting[0].step, "an update")
        except HangingError:
            return last
        fault = waiting.pop(0)
        last, job.last_fault = fault, time.monotonic()
        job.rows.append({"what": "fault", "number": fault.number, "time": job.last_fault, "step": row["step"]})
        if fault.how == "cut":
            links.cut(hosts, fault.rank)
            return last
        if fault.how == "slow":
            links.slow(hosts, fault.rank, fault.seconds)
        else:
            links.lose_packets(hosts, fault.rank, fault.seconds, fault.number)
    return last
