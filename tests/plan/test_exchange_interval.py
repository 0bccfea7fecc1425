"""The time of updates between exchanges of parameters, against closed forms on a link without latency."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plan.profiles import profile, step
from rueda.errors import ProfileError
from rueda.plan import Cluster, Link, load_cluster, make_plan, predict, predict_exchange
from rueda.plan.exchange_interval import advised, compare_exchanges, worth_below
from rueda.plan.prediction import INTERFERENCE
from rueda.records.plan import Plan, Prediction
from rueda.report.collect import collect

COMPUTE, BYTES = 0.1, 4e6
"""seconds of an update of a worker alone, and bytes of its parameters"""
MEASURED = profile([step(64, COMPUTE)], parameters=1_000_000)


def cluster(bandwidth: float, **more: Any) -> Cluster:
    """Machines of one device each: a ring of N takes 2 (N - 1) / N b / bandwidth, in one bucket that is not hidden."""
    link = Link(latency=0.0, bandwidth=bandwidth)
    return Cluster(
        name="line", devices_per_node=1, between=link, library="gloo", jitter=0.0, speed=1.0, **more
    )  # fmt: skip


def every_update(machines: Cluster, workers: int = 2) -> Prediction:
    return predict(replace(MEASURED, buckets=1), machines, workers=workers, local_batch=64)


@pytest.mark.parametrize("workers", [2, 8])
@pytest.mark.parametrize("sync_every", [1, 8, 64])
def test_an_exchange_is_spread_over_the_updates_between_two(workers: int, sync_every: int) -> None:
    machines = cluster(4e6)
    found = predict_exchange(MEASURED, machines, every_update(machines, workers), sync_every=sync_every)
    sent = 2 * (workers - 1) / workers * BYTES
    assert found.exchange_seconds == pytest.approx(sent / 4e6)
    assert found.step_seconds == pytest.approx(COMPUTE + sent / 4e6 / sync_every)
    assert found.exposed_seconds == pytest.approx(sent / 4e6 / sync_every)
    assert found.bytes_per_update == pytest.approx(sent / sync_every)
    one = every_update(machines, workers)
    assert found.share == pytest.approx(found.step_seconds / one.step_seconds)


DELAYS = {
    "all of it is hidden": (16, 1, 12, COMPUTE + INTERFERENCE * 1.0 / 16),
    "four updates hide 0.4 of 1 s": (16, 1, 4, COMPUTE + (0.6 + INTERFERENCE * 0.4) / 16),
    "fragments of 0.25 s, of which 0.2 s are hidden": (16, 4, 2, COMPUTE + 4 * (0.05 + INTERFERENCE * 0.2) / 16),
    "two fragments of 0.5 s are under way at once: the link is never idle": (4, 2, 3, 0.25),
}


@pytest.mark.parametrize("case", DELAYS)
def test_a_delay_hides_what_is_computed_meanwhile(case: str) -> None:
    sync_every, fragments, delay, seconds = DELAYS[case]
    machines = cluster(4e6)  # an exchange among 2 workers takes 1 s
    found = predict_exchange(
        MEASURED, machines, every_update(machines), sync_every=sync_every, fragments=fragments, delay=delay
    )
    assert found.exchange_seconds == pytest.approx(1.0)
    assert found.step_seconds == pytest.approx(seconds)


def test_the_bandwidth_from_which_on_it_is_not_worth_it() -> None:
    """One bucket, nothing hidden: (c + x / H) / (c + x) = 0.95 at x = 0.05 c / (0.95 - 1 / H)."""
    measured, machines = replace(MEASURED, buckets=1), cluster(1e6)
    for sync_every in (2, 8, 64):
        exchange = 0.05 * COMPUTE / (0.95 - 1 / sync_every)
        limit = worth_below(measured, machines, every_update(machines), sync_every=sync_every)
        assert limit == pytest.approx(BYTES / exchange, rel=2e-3)
    slow = replace(machines, between=Link(latency=1.0, bandwidth=1e6))  # a hop of 1 s saves at any bandwidth
    assert worth_below(measured, slow, every_update(slow), sync_every=8) is None


def test_the_shortest_interval_that_gains_nearly_all_is_advised() -> None:
    machines = cluster(4e6)
    rows = compare_exchanges(MEASURED, machines, every_update(machines), [8, 64, 512, 4096])
    assert [round(row.step_seconds, 4) for row in rows] == [0.225, 0.1156, 0.102, 0.1002]
    found = advised(rows)
    assert found is not None and found.sync_every == 512
    fast = cluster(4e12)
    assert advised(compare_exchanges(MEASURED, fast, every_update(fast), [8, 64])) is None


def test_a_plan_for_two_rooms_speaks_of_it_and_one_for_a_fast_link_only_if_asked(tmp_path: Path) -> None:
    rooms, fast = load_cluster("two-rooms"), load_cluster("dgx-h100")
    steps = [step(16, 0.02), step(64, 0.06)]
    large = profile(steps, parameters=20_000_000)
    plan = make_plan(large, rooms, workers=[1, 16])
    assert [row.sync_every for row in plan.exchanges] == [8, 64, 512] and plan.exchanges[0].workers == 16
    (told,) = [text for text in plan.advice if "sync_every" in text]
    assert "accuracy is not predicted" in told and "--workers 16 --rehearse --set batch=" in told
    assert "the latency alone is worth it" in told
    assert Plan.from_json(plan.to_json()) == plan
    plan.save(tmp_path / "plan.json")
    (section,) = collect([tmp_path])
    assert any(table.title.startswith("Exchanging parameters every H updates") for table in section.tables)
    assert make_plan(large, fast, workers=[1, 8]).exchanges == ()
    asked = make_plan(large, fast, workers=[8], sync_every=[8])
    assert len(asked.exchanges) == 1 and "average the gradients at every update" in asked.advice[-1]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "one worker": ({"workers": [1], "sync_every": [8]}, "sync_every: expected 2 or more workers"),
    "an interval of 1": ({"workers": [8], "sync_every": [1]}, "sync_every: expected intervals of 2 or more"),
    "too long a delay": ({"workers": [8], "sync_every": [8], "sync_delay": 8}, "delay: expected 0 to 7, got 8"),
}


@pytest.mark.parametrize("case", BAD)
def test_mistakes(case: str) -> None:
    options, message = BAD[case]
    with pytest.raises(ProfileError, match=message):
        make_plan(MEASURED, load_cluster("two-rooms"), **options)
