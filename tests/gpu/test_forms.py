"""Each form whose model is divided, trained on impostor devices: the numbers of one worker on the CPU, and no waits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gpu.bench import on_impostor
from rueda.records import Recipe
from rueda.records.recipe.parallel_form import mesh_of
from rueda.train.training import Training
from rueda.world import World, current
from tinytask import parameters, tiny_task

BATCH, STEPS = 24, 12
BASE = Recipe(
    batch=BATCH, epochs=2, precision="float64", optimizer="adamw", rate=1e-2, parallel="pipeline", micro_batches=4
)  # fmt: skip
FORMS: dict[str, dict[str, Any]] = {
    "sharded": {"parallel": "sharded"},
    "sharded, clipped": {"parallel": "sharded", "clip": 0.5, "optimizer": "lamb"},
    "tensor": {"parallel": "tensor"},
    "tensor, clipped": {"parallel": "tensor", "clip": 0.5, "optimizer": "lars"},
    "gpipe": {"parallel": "pipeline", "pipeline_schedule": "gpipe"},
    "1f1b, clipped": {"parallel": "pipeline", "pipeline_schedule": "1f1b", "clip": 0.5},
    "interleaved": {"parallel": "pipeline", "pipeline_schedule": "interleaved"},
}
COMBINATIONS = ["data 2 x sharded 2", "data 2 x tensor 2", "data 2 x pipeline 2", "sharded 2 x tensor 2"]


def has_the_numbers_of_one_worker_and_does_not_wait(recipe: Recipe) -> None:
    from gpu.recorder import Recorder

    world = current()
    replicas = mesh_of(recipe.parallel, world.size).replicas
    job = Training(tiny_task(), recipe.change(workers=world.size, batch=BATCH // replicas), world)
    alone = Training(tiny_task(), recipe.change(parallel="data"), World(device=torch.device("cpu")))
    for _ in range(STEPS - 1):
        job.step()
    with Recorder() as record:
        job.step()
    for _ in range(STEPS):
        alone.step()
    assert not record.waits
    model = job.whole_model()
    if world.is_main:
        assert next(model.parameters()).device == world.device
        difference = (parameters(model).cpu() - parameters(alone.model)).abs().max().item()
        assert difference <= 1e-10


@pytest.mark.parametrize("name", FORMS)
@on_impostor(workers=2)
def test_a_form_on_two_devices(name: str) -> None:
    has_the_numbers_of_one_worker_and_does_not_wait(BASE.change(**FORMS[name]))


@pytest.mark.parametrize("form", COMBINATIONS)
@on_impostor(workers=4)
def test_two_forms_on_four_devices(form: str) -> None:
    has_the_numbers_of_one_worker_and_does_not_wait(BASE.change(parallel=form))
