"""A whole training in pipelines: the results of one worker, and checkpoints that resume in any form."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

import rueda
from harness import workers
from rueda.errors import RecipeError
from rueda.records import Recipe, Row
from rueda.train.state import checkpoint_contents, restore
from rueda.train.training import Training
from rueda.world import World, current
from tinytask import parameters, rehearsal, run, tiny_task

RECIPE = Recipe(batch=24, epochs=2, rate=0.05, precision="float64", micro_batches=4, clip=1.0, parallel="pipeline")


def figures(rows: list[Row]) -> list[float]:
    epochs = [row for row in rows if row.kind == "epoch"]
    return [value for row in epochs for value in (row.step, row.train_loss, row.test_loss, row.test_accuracy)]  # type: ignore[misc]


def trained(recipe: Recipe, world: World) -> tuple[list[float], torch.Tensor]:
    rows: list[Row] = []
    result = run(Training(tiny_task(), recipe.change(workers=world.size), world), rows)
    return figures(rows), parameters(result.model) if world.is_main else torch.zeros(0)


@workers(2)
def test_a_training_is_that_of_one_worker() -> None:
    for schedule in ("gpipe", "1f1b", "interleaved"):
        recipe = RECIPE.change(pipeline_schedule=schedule)
        found, wanted = trained(recipe, current()), trained(recipe.change(parallel="data"), World())
        assert found[0] == pytest.approx(wanted[0], rel=1e-10)
        if current().is_main:
            assert torch.allclose(found[1], wanted[1], rtol=0, atol=1e-10)


@workers(4)
def test_two_pipelines_are_two_workers() -> None:
    recipe = RECIPE.change(batch=12, parallel="data 2 x pipeline 2")
    found, wanted = trained(recipe, current()), trained(RECIPE.change(parallel="data"), World())
    assert found[0][0] == wanted[0][0]
    assert found[0] == pytest.approx(wanted[0], rel=1e-9)
    if current().is_main:
        assert torch.allclose(found[1], wanted[1], rtol=0, atol=1e-10)


@workers(2)
def test_checkpoints_resume_in_other_forms() -> None:
    world = current()
    recipe = RECIPE.change(optimizer="adamw", rate=1e-2)
    alone = Training(tiny_task(), recipe.change(parallel="data"), World())
    divided = Training(tiny_task(), recipe.change(workers=2), world)
    for _ in range(7):
        alone.step()
        divided.step()
    of_pipeline = world.broadcast_object(checkpoint_contents(divided))
    of_one = copy.deepcopy(checkpoint_contents(alone))  # as from a file: the training goes on
    interleaved = Training(tiny_task(), recipe.change(workers=2, pipeline_schedule="interleaved"), world)
    restore(interleaved, Path("one"), of_one)
    again = Training(tiny_task(), recipe.change(parallel="data"), World())
    restore(again, Path("pipeline"), of_pipeline)
    for training in (alone, divided, interleaved, again):
        assert training.state.step == 7
        for _ in range(8):
            training.step()
    for training in (divided, interleaved, again):
        assert training.state.step == alone.state.step and training.state.clock == alone.state.clock
        model = training.whole_model()
        if world.is_main:
            difference = (parameters(model) - parameters(alone.model)).abs().max().item()
            assert difference <= 1e-12, (training.recipe.parallel, training.recipe.pipeline_schedule, difference)


@workers(2)
def test_what_is_refused() -> None:
    for recipe, message in (
        (RECIPE.change(parallel="data 2 x pipeline 2"), "expected 4 workers, got 2"),
        (RECIPE.change(ema_decay=0.9), "does not go with parallel = 'pipeline'"),
    ):
        with pytest.raises(RecipeError, match=message):
            Training(tiny_task(), recipe.change(workers=2), current())


def test_a_rehearsal_does_not_apply() -> None:
    with pytest.raises(RecipeError, match=r"a rehearsal computes .* does not go with parallel = 'pipeline'"):
        rehearsal(tiny_task(), RECIPE.change(workers=2))


def test_a_wrong_form() -> None:
    with pytest.raises(RecipeError, match="parallel: expected data, sharded, pipeline, tensor, or one of"):
        Recipe(parallel="sideways")
    assert rueda.Recipe(parallel="pipeline").parallel == "pipeline"
