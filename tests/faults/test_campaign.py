"""The plan of the campaign, and its tables in the documentation."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from faults.campaign import RUNNERS, STREAMS
from faults.injected import HAPPENINGS
from faults.outcomes import Outcome, measure_recovery
from faults.plan import HOWS, JOBS, Fault, make_plan
from faults.table import PAGE, page_with, stored_faults

LINKS = {"cut", "slow", "lose_packets", "crash", "poison_key"}


def test_a_plan_has_200_faults_of_all_kinds_and_families() -> None:
    plan = make_plan(0)
    faults = [(JOBS[job.name].family, fault) for job in plan for fault in job.faults]
    assert len(faults) >= 200 and {fault.kind for _, fault in faults} == set(HOWS)
    assert {family for family, _ in faults} == {"plain", "elastic", "rehearsed", "hvd"}
    assert [fault.number for _, fault in faults] == list(range(len(faults)))
    assert all(fault.how in HAPPENINGS or fault.how in LINKS for _, fault in faults)
    counted = Counter((job.name, fault.kind) for job in plan for fault in job.faults)
    assert counted == {(name, kind): number for name, job in JOBS.items() for kind, number in job.counts.items()}
    assert counted["elastic-hosts-4", "host lost"] == counted["hvd-elastic-hosts-4", "host lost"] == 20
    for job in plan:  # each in its own part of the training, and some updates are left after the last
        steps = [fault.step for fault in job.faults]
        assert not JOBS[job.name].steps or (steps == sorted(set(steps)) and steps[-1] <= JOBS[job.name].steps - 10)


def test_every_kind_of_job_has_a_runner_and_a_place_in_a_stream() -> None:
    assert set(RUNNERS) == set(JOBS)
    assert sorted(name for stream in STREAMS for name in stream) == sorted(name for name in JOBS if JOBS[name].counts)


@pytest.mark.parametrize(
    ("steps", "recovered", "again"),
    [
        ([(1.0, 5), (2.5, 6)], 0.5, 0),
        ([(1.0, 5), (2.5, 4), (2.6, 5), (3.0, 6)], 1.0, 20),  # back to update 3
        ([(1.0, 5), (2.1, 6), (2.2, 7), (4.0, 5), (4.1, 6), (4.2, 7), (5.0, 8)], 3.0, 30),  # it ended later
        ([(1.0, 5)], None, 0),
    ],
)
def test_a_recovery_ends_with_the_first_new_update(
    steps: list[tuple[float, int]], recovered: float | None, again: int
) -> None:
    one = Outcome(fault=Fault(number=3, kind="kill -9", how="kill", rank=0, step=5), job="fit-2")
    rows = [{"what": "step", "time": time, "step": step} for time, step in steps]
    rows.insert(1, {"what": "fault", "time": 2.0, "number": 3, "step": 5})
    measure_recovery({3: one}, rows, 10)
    assert (one.recovered_seconds, one.again) == (recovered, again)


def test_the_page_has_the_tables_of_the_result() -> None:
    rows = stored_faults()
    text = PAGE.read_text()
    assert page_with(text, rows) == text, "python -m faults.table"
    assert len(rows) >= 200 and Path(PAGE).name in PAGE.with_name("elastic.md").read_text()
