"""One path for the workers of a launcher and for those that are started."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from forked import forked
from harness import workers
from rueda.errors import ProfileError, RecipeError
from rueda.jobs import Stopped
from rueda.measure import measure
from rueda.measure.measure_task import _batches_together
from rueda.measure.request import FULL, QUICK, Budget
from rueda.records.profile import Profile, StepTime
from rueda.world import current, finish, init
from tinytask import tiny_task

LITTLE = Budget(steps=0.3, communication=0.1, together=0.3, noise=0.2, longest_step=0.5, sizes=(4, 4096, 65536))


@workers(2)
def test_under_a_launcher_its_workers_are_measured() -> None:
    world, threads = current(), torch.get_num_threads()
    profile = measure(tiny_task(), batches=[8, 16], budget=LITTLE)
    assert [step.batch for step in profile.steps] == [8, 16]
    assert [link.workers for link in profile.communication] == [pair.workers for pair in profile.together] == [2]
    assert len(profile.noise) == 2 and profile.contention is not None
    assert world.all_gather_object(profile) == [profile, profile]
    assert torch.get_num_threads() == threads
    assert Profile.from_json(profile.to_json()).together == profile.together


@workers(2)
def test_other_workers_than_those_that_run() -> None:
    with pytest.raises(RecipeError, match="a launcher started 2 workers already; leave --workers out"):
        measure(tiny_task(), workers=[4], budget=LITTLE)


OWN_GROUP = """
import os, sys
sys.path.insert(0, sys.argv[2])
import torch.distributed as dist
from rueda.measure import measure
from test_measure_task import LITTLE
from tinytask import tiny_task
rank = int(os.environ["NUMBER"])
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{sys.argv[1]}", rank=rank, world_size=2)
profile = measure(tiny_task(), batches=[8], budget=LITTLE)
assert [link.workers for link in profile.communication] == [2], profile.communication
dist.destroy_process_group()
"""


def test_a_process_group_of_the_scripts_own_is_measured() -> None:
    """Without any variable of a launcher."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    ranks = [{**os.environ, "OMP_NUM_THREADS": "1", "NUMBER": number} for number in "01"]
    with forked(OWN_GROUP, ranks, port, str(Path(__file__).parent)) as processes:
        ended = [process.wait() for process in processes]
    assert [status for status, _, _ in ended] == [0, 0], ended


def test_a_device_that_was_chosen_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str | None] = []

    def run(job: Any, **more: Any) -> Any:
        asked.append(job.request.device)
        raise Stopped

    monkeypatch.setattr("rueda.jobs.run", run)
    finish()
    for device in (None, "cpu"):
        if device is not None:
            init(device=device)
        with pytest.raises(Stopped):
            measure("linear", workers=[2], budget=LITTLE)
    finish()
    assert asked == [None, "cpu"]


def test_a_task_without_a_name_is_measured_alone() -> None:
    profile = measure(tiny_task(), budget=LITTLE, quick=True)
    assert profile.task == "clouds" and profile.communication == () and 24 in [step.batch for step in profile.steps]
    with pytest.raises(ProfileError, match="by name or file only"):
        measure(tiny_task(), workers=[2], budget=LITTLE)


def test_quick_is_under_half_a_minute() -> None:
    """The longest that the budgets allow: probing, twice the rounds of steps, and 8 s to start processes twice."""
    assert 3 * QUICK.steps + QUICK.noise + QUICK.communication + 2 * QUICK.together + 8 < 30
    assert FULL.steps > QUICK.steps and set(QUICK.sizes) <= set(FULL.sizes)


def test_batches_for_several_workers_fit_the_time() -> None:
    def step(batch: int) -> StepTime:
        return StepTime(
            batch=batch, seconds=batch / 1000, spread=0, repeats=1, data=0, forward=0, backward=0, optimizer=0
        )

    steps = [step(batch) for batch in (8, 16, 32, 64, 1024)]
    assert _batches_together(steps, own=32, seconds=100.0) == [8, 16, 32, 64, 1024]
    assert _batches_together(steps, own=1024, seconds=1.0) == [1024]
    assert _batches_together(steps, own=32, seconds=2.5) == [8, 16, 32, 64]
    assert _batches_together(steps[:2], own=32, seconds=1e-6) == [8]  # there were none where all steps are slow
