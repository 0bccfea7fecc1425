"""Faults of the campaign in elastic jobs: a worker, a link, a host."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from faults.elastic_jobs import run_elastic
from faults.outcomes import REFORMED, WENT_ON
from faults.plan import Fault, PlannedJob
from namespaces import NoHostsError, made_hosts


def planned(name: str, *faults: Fault) -> PlannedJob:
    return PlannedJob(name=name, number=0, faults=faults)


def test_a_worker_is_killed_and_one_is_stopped(tmp_path: Path) -> None:
    job = planned(
        "hvd-elastic-3",
        Fault(number=0, kind="SIGSTOP", how="stop", rank=1, step=5, seconds=0.2),
        Fault(number=1, kind="kill -9", how="kill", rank=0, step=12),
    )
    found = run_elastic(job, tmp_path / "job", None)
    assert [(one.outcome, one.problems) for one in found] == [(WENT_ON, []), (REFORMED, [])]


def test_a_training_whose_worker_is_killed_has_the_parameters_of_the_undisturbed_one(tmp_path: Path) -> None:
    job = planned("train-elastic-3", Fault(number=0, kind="kill -9", how="kill", rank=0, step=12))
    found = run_elastic(job, tmp_path / "job", None)
    assert [(one.outcome, one.problems, one.lost) for one in found] == [(REFORMED, [], 0)]


def test_links_that_are_slow_and_lossy_and_a_host_that_is_lost(tmp_path: Path) -> None:
    job = planned(
        "elastic-hosts-2",
        Fault(number=0, kind="slow link", how="slow", rank=1, step=5, seconds=0.5),
        Fault(number=1, kind="lossy link", how="lose_packets", rank=0, step=5, seconds=0.5),
        Fault(number=2, kind="host lost", how="crash", rank=0, step=8),
    )
    try:
        with made_hosts(tmp_path, f"rft{os.getpid()}") as hosts:
            found = run_elastic(job, tmp_path / "job", hosts)
    except NoHostsError as error:
        pytest.skip(str(error))
    assert [one.problems for one in found] == [[], [], []]
    assert found[2].outcome == REFORMED and found[2].lost == 0
