"""What the benchmarks share: interleaved repeats, and a result file that says what it was measured on."""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rueda.records.environment import environment

COMMITTED = Path(__file__).parent / "results"
RESULTS = Path(os.environ.get("RUEDA_RESULTS") or COMMITTED)


def compare(
    candidates: Mapping[str, Callable[[], object]],
    repeats: int,
    warmup: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Time each candidate in turn, round after round, so that a noisy machine disturbs all alike; seconds.

    With `clock=time.process_time` only the processor's time counts: right for one thread on a shared machine.
    """
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for round_number in range(warmup + repeats):
        for name, run in candidates.items():
            start = clock()
            run()
            if round_number >= warmup:
                seconds[name].append(clock() - start)
    return seconds


def ratio(seconds: Mapping[str, list[float]], name: str, against: str) -> float:
    """Return the median over rounds of one candidate's time over another's, each round being one pair."""
    return statistics.median(a / b for a, b in zip(seconds[name], seconds[against], strict=True))


def answer_of(command: Sequence[str], num_workers: int) -> Any:
    """Run a command in processes of its own, as a launcher would, and read the last line of rank 0 as JSON.

    Gives None if one of them failed.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    processes = []
    for rank in range(num_workers):
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        if num_workers > 1:
            environ |= {"RANK": str(rank), "WORLD_SIZE": str(num_workers), "LOCAL_RANK": str(rank)}
            environ |= {"LOCAL_WORLD_SIZE": str(num_workers), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        # Only rank 0's words are read: a pipe of another one could fill up and hold all of them.
        stdout = subprocess.DEVNULL if rank else subprocess.PIPE
        processes.append(subprocess.Popen([sys.executable, *command], env=environ, text=True, stdout=stdout))
    answer = processes[0].communicate()[0]
    codes = [process.wait() for process in processes]
    if any(codes):
        return None
    return json.loads(answer.strip().splitlines()[-1])


def save(name: str, result: dict[str, Any], *, seeds: Sequence[int]) -> None:
    """Write ``results/NAME.json`` with the machine, versions, command and seeds beside the figures.

    A result in the repository names the commit that gives it again, so a modified tree is refused: commit first, or
    write elsewhere with ``RUEDA_RESULTS=DIR``. The refused result is printed.

    Args:
        name: of the file.
        result: the figures.
        seeds: those that the benchmark sets, for data, networks and rounds; a peer may draw without one.
    """
    about = environment()
    text = json.dumps({**result, "seeds": list(seeds), "environment": about}, indent=1)
    if RESULTS.resolve() == COMMITTED.resolve() and not _is_clean(about["commit"]):
        print(text)
        sys.exit(
            f"benchmarks/results: expected a clean commit, got {about['commit']}; "
            "commit first, or set RUEDA_RESULTS=DIR to write elsewhere"
        )
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(text + "\n")


def earlier(name: str) -> dict[str, Any]:
    """Return what :func:`save` wrote before with this very commit, so that a benchmark can be run case by case.

    Another commit's cases are not kept: a result file names one. Nor are those of a modified tree: it may be another.
    """
    try:
        found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    except FileNotFoundError:
        return {}
    commit = environment()["commit"]
    return found if _is_clean(commit) and found["environment"]["commit"] == commit else {}


def _is_clean(commit: str | None) -> bool:
    return commit is not None and not commit.endswith("+")
