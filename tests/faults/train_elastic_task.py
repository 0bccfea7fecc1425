"""The task of ``rueda train --elastic``: clouds of points in float64, and a word about each update and each new world.

The global batch stays the same whoever trains, so that a job whose workers come and go makes the updates of one worker
that is never disturbed, up to rounding.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from faults.injected import VARIABLE, Worker, generation
from faults.plan import PAUSE_SECONDS
from faults.points import GLOBAL_BATCH
from rueda.records import Recipe
from rueda.tasks.task import Task
from tinytask import tiny_task

EXAMPLES = 480


def make_task(workers: int) -> Task:
    """Return the task; its global batch is divided among so many workers."""
    recipe = Recipe(
        batch=GLOBAL_BATCH // workers, epochs=10_000, rate=0.02, precision="float64", checkpoint_every=20,
        commit_every=5,
    )  # fmt: skip
    return replace(tiny_task(EXAMPLES), recipe=recipe)


def arm() -> None:
    """Let the trainings of this process tell of their updates, and suffer what they are told to."""
    if VARIABLE not in os.environ:
        return
    from rueda.train.training import Training

    worker = Worker(Path(os.environ[VARIABLE]))
    original, last = Training.step, -1

    def step(self: Training, **options: Any) -> Any:
        nonlocal last
        if generation() != last:
            last = generation()
            worker.enter(self.world.rank, self.world.size, self.state.step)
        result = original(self, **options)
        if self.world.is_main:
            worker.note("step", step=self.state.step, size=self.world.size, generation=generation())
        worker.obey(self.world.rank, {"model": self.model})
        time.sleep(PAUSE_SECONDS)
        return result

    Training.step = step  # type: ignore[method-assign]
