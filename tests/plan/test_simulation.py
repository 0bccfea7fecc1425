"""The simulation of failures against closed forms: Daly's expected time, renewal theory, Erlang's loss formula."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from rueda.errors import ProfileError
from rueda.plan.checkpoint_interval import daly_interval, expected_seconds
from rueda.plan.simulation import simulate, standard_error
from rueda.records.failure_plan import JobFailures

NEVER = 1e18
DAY = 24 * 3600.0


def job(mtbf: float, *, nodes: int = 4, stall: float = 30, write: float = 0, **more: float) -> JobFailures:
    """A training that is interrupted every ``mtbf`` seconds; unless said, at once noticed, recovered and repaired."""
    times = {"hardware": 1.0, "detect_seconds": 0.0, "recover_seconds": 0.0, "repair_seconds": 0.0, **more}
    return JobFailures(
        nodes=nodes, mtbf_seconds=nodes * mtbf, stall_seconds=stall, write_seconds=max(stall, write), **times
    )


def erlang(places: int, load: float) -> float:
    """The probability that all places of a loss system are taken (Erlang 1917)."""
    terms = [load**number / math.factorial(number) for number in range(places + 1)]
    return terms[-1] / sum(terms)


@pytest.mark.parametrize(
    ("mtbf", "stall", "recover", "detect", "interval"),
    [
        (36_000, 60, 300, 60, 2000),  # a large training
        (3600, 5, 0, 0, 300),  # fast checkpoints, nothing else
        (600, 30, 60, 10, 200),  # many failures
        (600, 30, 900, 10, 200),  # most recoveries fail
        (600, 30, 60, 10, 1200),  # failures more frequent than checkpoints
        (100, 250, 0, 0, 100),  # a checkpoint that takes longer than the time between failures
    ],
)
def test_dalys_expected_time(mtbf: float, stall: float, recover: float, detect: float, interval: float) -> None:
    one = job(mtbf, stall=stall, recover_seconds=recover, detect_seconds=detect)
    found = simulate(one, [interval], seconds=10 * interval, is_work=True, repetitions=4000)
    exact = expected_seconds(
        10 * interval, interval, stall=stall, mtbf=mtbf, recover=recover, detect=detect
    )  # fmt: skip
    seconds = found.seconds[0]
    assert abs(seconds.mean() - exact) < 3 * standard_error(seconds) < 0.1 * exact
    np.testing.assert_allclose(found.useful, 10 * interval)


@pytest.mark.parametrize(("write", "recover", "detect"), [(30, 0, 0), (120, 0, 0), (180, 50, 20)])
def test_a_checkpoint_counts_when_it_is_written(write: float, recover: float, detect: float) -> None:
    """An attempt keeps τ for each checkpoint that is complete before the failure: a geometric series."""
    mtbf, stall, interval = 600, 30, 200
    one = job(mtbf, stall=stall, write=write, recover_seconds=recover, detect_seconds=detect)
    found = simulate(one, [interval], seconds=1000 * mtbf, repetitions=400).rows()[0]
    kept = interval * math.exp(-(recover + write - stall) / mtbf) / math.expm1((interval + stall) / mtbf)
    assert abs(found.goodput - kept / (mtbf + detect)) < 3 * found.standard_error + 1e-3


def test_an_interval_shorter_than_the_writing_is_that_of_the_writing() -> None:
    one = job(600, stall=10, write=110)
    short, long = simulate(one, [1, 100], seconds=DAY, repetitions=50).goodput
    np.testing.assert_array_equal(short, long)


def test_without_failures_only_checkpoints_cost_time() -> None:
    found = simulate(job(NEVER, stall=60), [3540, DAY], seconds=DAY, repetitions=3).rows()
    assert [row.goodput for row in found] == pytest.approx([0.98333333, 1.0], abs=1e-8)
    assert [row.standard_error for row in found] == [0, 0] == [row.failures for row in found]


@pytest.mark.parametrize(("spares", "hardware"), [(0, 1.0), (0, 0.5), (1, 1.0), (3, 0.78)])
def test_waiting_for_repairs_is_erlangs_loss_system(spares: int, hardware: float) -> None:
    """Repairs are calls, nodes that may be missing are lines: the training waits while all lines are taken."""
    mtbf, repair = 1000.0, 2000.0
    one = job(mtbf, stall=1e-6, hardware=hardware, repair_seconds=repair)
    found = simulate(one, [1.0], seconds=1000 * mtbf, spares=spares, repetitions=300).rows()[0]
    waiting = erlang(spares + 1, hardware * repair / mtbf)
    assert abs(found.waiting - waiting) < 3 * found.standard_error + 1e-3
    assert found.goodput == pytest.approx(1 - found.waiting, abs=2e-3)


@pytest.mark.parametrize("nodes", [1, 4])
def test_elastic_nodes_are_up_independently_of_each_other(nodes: int) -> None:
    """Each is up for 1,000 s on average and away for 250: 80 % of all nodes compute."""
    one = job(1000 / nodes, nodes=nodes, stall=1e-6, repair_seconds=250.0)
    found = simulate(one, [1.0], seconds=300_000, elastic=True, repetitions=100).rows()[0]
    assert abs(found.goodput - 0.8) < 3 * found.standard_error + 1.5e-3
    assert found.missing + found.waiting == pytest.approx(0.2, abs=3e-3) and (found.waiting > 0.19) == (nodes == 1)


def test_the_fractions_of_the_time_add_up() -> None:
    """For spares, waiting and elastic, in every repetition; the clock never runs past the end."""
    one = job(5000, stall=20, write=100, detect_seconds=60, recover_seconds=300, repair_seconds=DAY / 4, hardware=0.7)
    for spares, elastic in ((0, False), (2, False), (0, True), (1, True)):
        found = simulate(one, [100, 1000, 10_000], seconds=DAY, spares=spares, elastic=elastic, repetitions=200)
        np.testing.assert_allclose(found.seconds, DAY)
        assert all((part >= 0).all() for part in (found.useful, found.stalled, found.lost, found.waiting))
        row = found.rows()[1]
        parts = row.stalled + row.lost + row.recovering + row.waiting + row.missing
        assert row.goodput + parts == pytest.approx(1)
        assert (row.missing > 0) == elastic


@pytest.mark.parametrize("elastic", [False, True])
def test_spares_help(elastic: bool) -> None:
    one = job(8 * 3600, nodes=128, stall=60, detect_seconds=60, recover_seconds=300, repair_seconds=DAY, hardware=0.78)
    goodput = [
        simulate(one, [1800], seconds=DAY, spares=spares, elastic=elastic, repetitions=1000).rows()[0].goodput
        for spares in (0, 1, 2, 4, 8)
    ]
    assert goodput == sorted(goodput)
    never_away = simulate(replace(one, repair_seconds=0), [1800], seconds=DAY, repetitions=1000).rows()[0].goodput
    assert goodput[-1] == pytest.approx(never_away, abs=1e-3)


@pytest.mark.parametrize(
    ("hours", "stall"), [(80.0, 60.0), (28.8, 60.0), (7.9, 60.0), (7.9, 300.0), (1.8, 60.0), (0.23, 20.0)]
)
def test_dalys_interval_is_within_half_a_percent_of_the_best_simulated(hours: float, stall: float) -> None:
    """From RSC-2's rate of 128 nodes to 131,072 GPUs, as projected for RSC-1."""
    one = job(3600 * hours, nodes=128, stall=stall, detect_seconds=60, recover_seconds=300)
    daly = daly_interval(stall, 3600 * hours)
    intervals = [daly * 2 ** (number / 4) for number in range(-8, 9)]
    found = simulate(one, intervals, seconds=5 * DAY, repetitions=300).rows()
    best = max(row.goodput for row in found)
    assert found[8].goodput > best - 0.005
    assert found[0].goodput < best - 0.005 and found[-1].goodput < best - 0.005


def test_a_seed_repeats() -> None:
    first, again, other = (simulate(job(3600), [600], seconds=DAY, repetitions=20, seed=n).goodput for n in (1, 1, 2))
    assert (first == again).all() and (first != other).any()


def test_more_failures_than_can_be_simulated() -> None:
    with pytest.raises(ProfileError, match=r"expected at most 5,000 in the simulated time, got 86,400, one every 1 s"):
        simulate(job(1), [60], seconds=DAY)
