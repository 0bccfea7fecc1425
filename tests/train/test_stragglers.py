"""A slow worker is named: its rank, its host, by how much and since when, in a line, in the rows and on the page."""

from __future__ import annotations

import socket
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import rueda
from harness import workers
from rueda.records import Recipe, Run
from rueda.report.runs import read_run
from rueda.train.stragglers import ComputeClock, Straggler, StragglerWatch
from rueda.world import current
from tinytask import network, tiny_task

HOST = socket.gethostname()
RECIPE = Recipe(batch=12, epochs=1, rate=0.05, compare_every=10)

JUDGED = {
    "equal": ([[0.010, 0.011, 0.010]] * 3, []),
    "one slow, told once": ([[0.01, 0.02, 0.01]] * 3, [(1, 0, True)]),
    "one slow once": ([[0.01, 0.02, 0.01], [0.01, 0.01, 0.01], [0.01, 0.01, 0.01]], []),
    "slow from the second on": ([[0.01, 0.01], [0.03, 0.01], [0.03, 0.01]], [(0, 10, True)]),
    "two of four": ([[0.01, 0.02, 0.02, 0.01]] * 2, [(1, 0, True), (2, 0, True)]),
    "slow by less than a quarter": ([[0.010, 0.012]] * 3, []),
    "slow by microseconds": ([[0.0005, 0.0011]] * 3, []),
    "recovers": ([[0.01, 0.02]] * 2 + [[0.01, 0.01]] * 2, [(1, 0, True), (1, 20, False)]),
}


@pytest.mark.parametrize(("seconds", "expected"), JUDGED.values(), ids=JUDGED)
def test_who_is_slow(seconds: list[list[float]], expected: list[tuple[int, int, bool]]) -> None:
    watch, found = StragglerWatch(), list[Straggler]()
    for number, one in enumerate(seconds, 1):
        found += watch.take(10 * number, 10, one)
    assert [(one.rank, one.since_step, one.slow) for one in found] == expected


def test_too_few_updates_are_not_judged() -> None:
    watch = StragglerWatch()
    assert not any(watch.take(2 * number, 2, [0.01, 0.09]) for number in range(5))


def test_the_clock_leaves_out_what_follows_the_first_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data 1, forward 2, backward 4 until the first layer's gradient and 8 of waiting, optimizer 16: 23 of 31."""
    now = [0.0]
    monkeypatch.setattr("rueda.train.stragglers.time", SimpleNamespace(perf_counter=lambda: now[0]))
    model = nn.Linear(1, 1)
    clock = ComputeClock(model)
    for _ in range(2):
        clock.begin()
        for stage, seconds in (("data", 1.0), ("forward", 2.0)):
            now[0] += seconds
            clock.mark(stage)
        now[0] += 4.0
        model(torch.ones(1, 1)).sum().backward()  # type: ignore[no-untyped-call]
        now[0] += 8.0
        clock.mark("backward")
        now[0] += 16.0
        clock.mark("optimizer")
        now[0] += 32.0  # a checkpoint
    assert clock.take(3) == (0, 0.0) and clock.take(2) == (2, 23.0) and clock.take() == (0, 0.0)
    clock.begin()
    now[0] += 8.0
    clock.mark("backward")  # without this parameter
    assert clock.take() == (1, 0.0)
    clock.close()


def check_named(folder: Path, slow: int) -> None:
    """One rank sleeps in its forward pass, 50 ms, up to update 20; the others only wait for it."""
    world = current()
    num_passes = [0]

    def sleep(*_: object) -> None:
        num_passes[0] += 1
        if world.rank == slow and num_passes[0] <= 20:
            time.sleep(0.05)

    def slowed() -> nn.Module:
        model = network()
        model.register_forward_hook(sleep)
        return model

    task = replace(tiny_task(12 * world.size * 30), model=slowed)
    rueda.fit(task, RECIPE, folder=folder, progress=False)
    if not world.is_main:
        return
    first = next(one for one in Run(folder).incidents() if one.ranks == (slow,))
    assert (first.what, first.ranks, first.hosts, first.since_step, first.step) == (
        "straggler", (slow,), (HOST,), 0, 20,
    )  # fmt: skip
    assert first.factor is not None and first.factor > 1.25
    assert first.excess_seconds is not None and first.excess_seconds > 0.02
    others = "the other worker" if world.size == 2 else "the median of the others"
    told = f"update 20: rank {slow} ({HOST}) is a straggler since update 0: it computes"
    assert first.text.startswith(told) and others in first.text and "ms more per update" in first.text
    line, notes = read_run(Run(folder), "run")
    assert f"run: {first.text}" in notes and line.progress


@workers(2)
def test_one_of_two_is_named(tmp_path: Path) -> None:
    check_named(tmp_path / "run", 1)


@workers(3)
def test_one_of_three_is_named(tmp_path: Path) -> None:
    check_named(tmp_path / "run", 0)
