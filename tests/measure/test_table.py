"""The words of a profile: what they say follows from its numbers."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from io import StringIO

import pytest

from rueda.measure.table import disturbed, lines_of, table_of
from rueda.records.profile import AllReduceTime, Communication, NoiseScale, Profile, StepTime, StepWork, Together


def step(batch: int, *, spread: float = 0.02, working: float = 1.0) -> StepTime:
    seconds = 1e-3 * batch
    return StepTime(
        batch=batch, seconds=seconds, spread=spread * seconds, repeats=9, data=0.1 * seconds, forward=0.3 * seconds,
        backward=0.5 * seconds, optimizer=0.1 * seconds, peak_memory_bytes=512_000_000,
        processor=working * 0.9 * seconds,
    )  # fmt: skip


PROFILE = Profile(
    task="mine", device="cpu (2 threads of something)", threads=2, precision="float32", parameters=4_000_000,
    gradient_bytes=16_000_000, examples=8192, recipe="", steps=(step(8), step(16)), largest_batch=4096,
    communication=(
        Communication(
            workers=2, backend="gloo", points=(AllReduceTime(bytes=4, seconds=1e-4),), latency=2e-4, bandwidth=1e9,
            residual=0.12,
        ),
    ),
    together=(Together(workers=2, threads=1, compute=(step(8),), joined=(step(8),), exchange=0.02, overlap=1.0),),
    noise=(
        NoiseScale(value=980.0, low=700.0, high=math.inf, variance=3.0, square=0.003, step=2000, steps=100),
        NoiseScale(value=1.0, low=1.0, high=1.0, variance=3.0, square=3.0, step=2000, steps=100, group="head"),
    ),
)  # fmt: skip


def test_the_table_and_its_lines() -> None:
    from rich.console import Console

    console = Console(width=80, record=True, file=StringIO())
    console.print(table_of(PROFILE))
    row = next(line for line in console.export_text().splitlines() if "8.00" in line)
    cells = re.split(r"\s{2,}", row.strip())
    assert cells == ["8", "1,000", "8.00", "2 %", "10 %", "30 %", "50 %", "10 %", "512 MB", "2,000"]
    assert lines_of(PROFILE) == [
        "largest batch that fits: about 4,096",
        "all-reduce among 2 workers (gloo): 0.2 ms + bytes / 1.0 GB/s, fitted to 12 %; 16 MB of gradients: 16.2 ms",
        "2 workers of 1 thread each: the exchange takes 20 ms per step, none of it overlapped; fitted to 0 %",
        "gradient noise scale at step 2,000: 980 examples (95 % interval 700 to ∞, over 100 steps)",
    ]


def test_the_counted_work_is_told() -> None:
    counted = replace(PROFILE, work=StepWork(flops=67_608_576, saved_bytes=248_112.0, update_bytes=7_719_152))
    assert lines_of(counted)[1] == (
        "counted: 67.6 Mflop and 248 kB of activations for each of the images; 7.7 MB of parameters, gradients and "
        "optimizer state"
    )


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([step(8), step(16)], None),
        ([step(8), step(16, spread=0.5)], "step times spread by 26 %"),
        ([step(8, working=0.5), step(16, working=0.5)], "the processor worked on the steps only 50 % of the time"),
        ([replace(step(8), processor=None)], None),
    ],
)
def test_a_busy_machine_is_told(steps: list[StepTime], said: str | None) -> None:
    assert disturbed(steps) == said
    assert any("measure again" in line for line in lines_of(replace(PROFILE, steps=tuple(steps)))) == (said is not None)
