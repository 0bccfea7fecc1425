"""Be one rank of many, alone, and train through ``Training`` in one form: ``python rank_of_many.py FORM RANK SIZE``.

The process group is torch's own ``fake`` one: every collective returns at once and carries nothing, and every rank has
its subgroups. What a rank receives has no meaning, so the test of finite gradients is left out; of a pipeline, rank 0's
cut is taken to be :data:`CUT`, and the other stages to know their shapes as this one does. Data parallelism is in
:mod:`gpu.test_scale`.
Prints what this rank sent and holds, as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

WIDTH, LAYERS, BATCH = 1024, 4, 4
CUT = (2, 4, 6, 8)
"""where the stages of a pipeline end: each has a matrix and a function"""


def model() -> nn.Module:
    """Two pairs of matrices, each of which tensor parallelism can split."""
    parts: list[nn.Module] = []
    for _ in range(LAYERS // 2):
        parts += [nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*parts)


def task(examples: int) -> Any:
    """Return a task with so many examples."""
    import rueda

    data = rueda.Arrays(torch.ones(examples, WIDTH), torch.arange(examples) % WIDTH)
    return rueda.Task(name="wide", model=model, train=lambda: data, test=lambda: data)


def recipe(form: str, size: int) -> Any:
    """Return the recipe of a form on so many workers."""
    from rueda.records import Recipe

    return Recipe(workers=size, batch=BATCH, parallel=form, optimizer="adamw", rate=1e-3, recalibrate="never")


def main() -> None:
    """Train two steps as one rank and count the third."""
    form, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from rueda.records.recipe.parallel_form import mesh_of
    from rueda.study.form_jobs import count_step
    from rueda.train.divergence import FiniteTest
    from rueda.train.training import Training
    from rueda.world import World
    from rueda.world.life import open_world

    FiniteTest.check = lambda self, norm=None: True  # type: ignore[method-assign]
    mesh = mesh_of(form, size)
    if mesh.pipeline > 1:
        World.broadcast_object = lambda self, value: list(CUT)  # type: ignore[method-assign]
        dist.recv = lambda tensor, **options: tensor.fill_(1)  # the vote of another stage
    given = task(BATCH * mesh.replicas)
    started = time.process_time()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    world = open_world(seed=0)
    assert (world.rank, world.size) == (rank, size)
    training = Training(given, recipe(form, size), world)
    seconds = time.process_time() - started
    for _ in range(2):
        training.step()
    counts = count_step(training, mesh)
    sent = {f"{carries}: {collective}": value for (carries, collective), value in counts.sent.items()}
    print(json.dumps({"sent": sent, "memory": asdict(counts.memory), "seconds": seconds}))


if __name__ == "__main__":
    main()
