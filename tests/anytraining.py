"""What must hold for the training of any task: the same parameters on 1 and N workers, rehearsed and resumed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import rueda
from rueda.records import Recipe
from rueda.tasks import Task
from rueda.world import current
from tinytask import parameters, rehearsal, run, training


def recipe_of(task: Task, workers: int, **changes: object) -> Recipe:
    """The same global batches of 12 on any number of workers."""
    return task.recipe.change(workers=workers, batch=12 // workers, **changes)


def trained_alone(task: Task, **changes: object) -> torch.Tensor:
    return parameters(run(training(task, recipe_of(task, 1, **changes), alone=True)).model)


def same_as_one_worker(task: Task) -> None:
    """The workers of the test train to the parameters of one worker, and so does their rehearsal."""
    world = current()
    found = run(training(task, recipe_of(task, world.size)))
    assert found.status == "finished" and found.row is not None
    together = parameters(found.model)
    alone = run(training(task, recipe_of(task, 1), alone=True))
    assert alone.row is not None and alone.row.train_loss is not None
    assert (together - parameters(alone.model)).abs().max() < 1e-10
    assert not torch.equal(together, parameters(training(task, task.recipe, alone=True).model))
    assert found.row.train_loss == pytest.approx(alone.row.train_loss, abs=1e-10)
    if task.name != "contrastive":  # in an evaluation every worker compares its own examples
        assert found.row.test_loss == pytest.approx(alone.row.test_loss, abs=1e-10)
    rehearsed = run(rehearsal(task, recipe_of(task, world.size)))
    assert (together - parameters(rehearsed.model)).abs().max() < 1e-12
    assert rehearsed.row is not None and rehearsed.row.train_loss == pytest.approx(found.row.train_loss, abs=1e-12)


def resumes_bit_for_bit(task: Task, folder: Path) -> None:
    """A training that is stopped within an epoch and resumed ends at the same bits."""
    recipe = recipe_of(task, current().size, checkpoint_every=3, keep=99)
    whole = rueda.fit(task, recipe, folder=folder, progress=False)
    resumed = rueda.fit(task, recipe, folder=folder, resume=True, resume_from=3, progress=False)
    assert torch.equal(parameters(whole.model), parameters(resumed.model))
    assert whole.row is not None and resumed.row is not None
    assert (whole.row.train_loss, whole.row.test_loss) == (resumed.row.train_loss, resumed.row.test_loss)
