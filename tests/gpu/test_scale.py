"""One rank of 8 and of 1,024, alone: what a rank allocates, sends and computes does not grow with their number.

The process group is :mod:`gpu.solo`. It shows rank 0, which writes, and the last rank, which hears rank 0 from a tape.
"""

from __future__ import annotations

import time
import tracemalloc
from typing import NamedTuple

import pytest
import torch

from harness import workers
from rueda.records import Recipe
from tinytask import parameters, tiny_task

NUM_STEPS = 4


class Cost(NamedTuple):
    """What one rank of ``size`` did, until its training was ready and in each step."""

    start_seconds: float
    start_bytes: int
    step_bytes: dict[str, int]
    step_calls: dict[str, int]
    num_messages: int
    parameters: torch.Tensor


def measured(rank: int, size: int, tape: list[list[torch.Tensor]], model: dict[str, object]) -> Cost:
    """Open the world, prepare a training, make some steps, evaluate, as one rank of many."""
    from gpu.solo import solo
    from rueda.train.evaluate import Evaluator
    from rueda.train.training import Training
    from rueda.world import finish
    from rueda.world.life import open_world

    with solo(rank=rank, size=size, tape=tape) as group:
        tracemalloc.start()
        started = time.process_time()
        world = open_world(seed=1)
        assert (world.rank, world.size, world.is_main) == (rank, size, rank == 0)
        recipe = Recipe(workers=size, batch=2, model=model, sync_batch_norm=bool(model))
        task = tiny_task(num_train=2 * size * NUM_STEPS, num_test=2 * size + 1)
        task.load("train"), task.load("test")  # the data themselves grow with the number of workers here
        job = Training(task, recipe, world)
        seconds = time.process_time() - started
        start_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        before = group.num_bytes.copy(), group.num_calls.copy()
        for _ in range(NUM_STEPS):
            job.step()
        step_bytes = {name: count / NUM_STEPS for name, count in (group.num_bytes - before[0]).items()}
        step_calls = {name: count / NUM_STEPS for name, count in (group.num_calls - before[1]).items()}
        found = Evaluator(job).run().test
        assert found.num_examples > 0
        finish()
        return Cost(seconds, start_bytes, step_bytes, step_calls, sum(group.num_calls.values()), parameters(job.model))


@workers(1)
def test_one_rank_of_1024_costs_what_one_of_8_costs() -> None:
    from rueda.world import finish, init

    finish()
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
                patch.delenv(name, raising=False)
            measured(0, 8, [], {})  # imports
            tapes: dict[int, list[list[torch.Tensor]]] = {8: [], 1024: []}
            few, many = (measured(0, size, tapes[size], {}) for size in (8, 1024))
            last = measured(1023, 1024, tapes[1024], {})
        num_bytes = 4 * few.parameters.numel()
        for cost in (few, many, last):  # the gradients, once a step, and nothing else
            assert cost.step_bytes["allreduce"] == pytest.approx(num_bytes, abs=256), cost.step_bytes
            assert sum(cost.step_bytes.values()) <= num_bytes + 256 and sum(cost.step_calls.values()) <= 2
        assert many.num_messages == last.num_messages == few.num_messages
        for cost in (many, last):
            assert cost.start_seconds < few.start_seconds + 2.0  # seconds of the processor
            assert cost.start_bytes < few.start_bytes + 4_000_000
        assert not torch.equal(few.parameters, many.parameters) and torch.isfinite(last.parameters).all()
    finally:
        init(seed=0)
