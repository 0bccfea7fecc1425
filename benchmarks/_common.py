"""What the benchmarks share: interleaved repeats, and a result file that says what it was measured on."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rueda.records.environment import environment

RESULTS = Path(__file__).parent / "results"


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


def save(name: str, result: dict[str, Any]) -> None:
    """Write ``results/NAME.json`` with the machine, versions and command beside the figures."""
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps({**result, "environment": environment()}, indent=1)
    (RESULTS / f"{name}.json").write_text(text + "\n")
