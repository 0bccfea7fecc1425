"""All-reduce, shared machine and overlap, with two real workers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from harness import workers
from rueda.errors import WorldError
from rueda.measure.communication import measure_communication
from rueda.measure.request import QUICK, TogetherRequest
from rueda.measure.steps import Stepper
from rueda.measure.together import measure_together, num_buckets
from rueda.measure.worker_jobs import measure_together_here
from rueda.records import Recipe
from rueda.records.profile import Communication
from rueda.world import World, current
from tinytask import parameters, tiny_task


@workers(2)
def test_an_all_reduce_is_measured_and_all_workers_agree() -> None:
    world = current()
    link = measure_communication(world, sizes=(4, 1 << 12, 1 << 20, 1 << 22), seconds=0.4)
    assert (link.workers, link.backend) == (2, current().transport)
    assert [point.bytes for point in link.points] == [4, 1 << 12, 1 << 20, 1 << 22]
    assert all(point.seconds > 0 and point.repeats >= 9 for point in link.points)
    assert link.points[-1].seconds > link.points[0].seconds  # a million times the bytes
    assert link.latency > 0 and 1e6 < link.bandwidth < 1e12
    assert link.seconds(1 << 22) > link.seconds(4)
    assert world.all_gather_object(link) == [link, link]


@workers(2)
def test_steps_together_exchange_gradients_and_keep_the_batch() -> None:
    world = current()
    link = Communication(workers=2, backend="gloo", points=(), latency=1e-4, bandwidth=1e9, residual=0)
    found = measure_together(tiny_task(), Recipe(batch=8), world, [8, 32, 200], link, seconds=0.5)
    assert found.workers == 2 and found.threads >= 1
    # 200 examples of 240 are no batch for two workers.
    assert [step.batch for step in found.compute] == [step.batch for step in found.joined] == [8, 32]
    assert found.exchange > 0 and 1 <= found.overlap <= 10 and found.residual >= 0
    assert all(step.seconds > 0 and step.backward > 0 for step in (*found.compute, *found.joined))
    assert world.all_gather_object(found) == [found, found]


@workers(2)
def test_the_joined_steps_average_and_the_others_do_not() -> None:
    world = current()
    for own in (world, World(device=world.device)):
        stepper = Stepper(tiny_task(), Recipe(batch=8), own)
        stepper.training.state.epoch = world.rank  # other data on each worker
        before = parameters(stepper.training.model).clone()
        stepper.block(8, 6, stages=True)
        after = parameters(stepper.training.model)
        assert not torch.equal(after, before)
        first, second = world.all_gather(after)
        assert torch.equal(first, second) == (own.size == 2)


@workers(2)
def test_what_workers_are_asked_for_they_answer() -> None:
    budget = replace(QUICK, sizes=(4, 4096, 65536), together=0.2, communication=0.1)
    request = TogetherRequest(task="clouds", recipe=Recipe(batch=8), batches=(8, 16), budget=budget)
    answer = measure_together_here(tiny_task(), request)
    assert answer.communication.workers == answer.together.workers == 2
    assert [step.batch for step in answer.together.joined] == [8, 16]


def test_one_worker_has_nothing_to_exchange() -> None:
    with pytest.raises(WorldError, match="needs two workers or more, got 1"):
        measure_communication(World())


@pytest.mark.parametrize(
    ("num_bytes", "buckets"), [(4, 1), (1 << 20, 1), ((1 << 20) + 1, 2), (26 << 20, 2), ((26 << 20) + 1, 3)]
)
def test_buckets(num_bytes: int, buckets: int) -> None:
    assert num_buckets(num_bytes) == buckets
