"""The loop: one worker against N, counts to the last digit, early stop, divergence, accumulation."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import rueda
from harness import workers
from rueda.errors import RecipeError, RunError, TaskError
from rueda.records import Recipe
from rueda.tasks.task import Task, squared_error
from rueda.train.evaluate import evaluate
from rueda.train.job import resolved_recipe
from rueda.train.loaders import evaluation_loader
from rueda.train.request import TrainRequest
from rueda.world import World, current
from tinytask import clouds, parameters, run, tiny_task, training

OPTIMIZERS = [Recipe(optimizer="sgd", rate=0.1), Recipe(optimizer="adam", rate=0.01)]


def check_parity(recipe: Recipe) -> None:
    """20 steps at global batch 24: one worker, and N workers with a share each, in float64."""
    size = current().size
    common = recipe.change(precision="float64", epochs=2, batch=24)
    one = run(training(tiny_task(), common, alone=True))
    many = run(training(tiny_task(), common.change(batch=24 // size)))
    assert one.row is not None and many.row is not None
    assert one.row.step == many.row.step == 20
    expected, found = parameters(one.model), parameters(many.model)
    assert (found - expected).norm() <= 1e-6 * expected.norm()
    assert one.row.test_correct == many.row.test_correct
    assert many.row.train_loss == pytest.approx(one.row.train_loss, rel=1e-9)


@pytest.mark.parametrize("recipe", OPTIMIZERS, ids=lambda recipe: recipe.optimizer)
@workers(2)
def test_two_workers_equal_one(recipe: Recipe) -> None:
    check_parity(recipe)


@pytest.mark.parametrize("recipe", OPTIMIZERS, ids=lambda recipe: recipe.optimizer)
@workers(4)
def test_four_workers_equal_one(recipe: Recipe) -> None:
    check_parity(recipe)


@workers(3)
def test_clipping_and_accumulation_on_three_workers() -> None:
    check_parity(Recipe(rate=0.1, clip=0.05))
    plain = run(training(tiny_task(), Recipe(batch=8, precision="float64", epochs=2)))
    parts = run(training(tiny_task(), Recipe(batch=2, accumulate=4, precision="float64", epochs=2)))
    assert plain.row is not None and parts.row is not None
    assert plain.row.step == parts.row.step == 20 and plain.row.global_batch == parts.row.global_batch == 24
    assert torch.allclose(parameters(plain.model), parameters(parts.model), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("num_test", [1, 2, 3, 101, 300])
@workers(3)
def test_evaluation_counts_every_example_once(num_test: int) -> None:
    """Accuracy of N workers equals that of one, to the last count, whatever N does not divide."""
    task = tiny_task(num_test=num_test)
    result = run(training(task, Recipe(batch=8, epochs=1)))
    data = task.load("test")
    alone = evaluate(task, result.model, evaluation_loader(data, 64, World(), torch.float32), World())
    outputs = result.model.eval()(data.inputs)
    truth = int((outputs.argmax(1) == data.targets).sum())
    assert result.row is not None
    assert result.row.test_correct == alone.counts["accuracy"] == truth
    assert alone.num_examples == num_test
    assert result.row.test_accuracy == truth / num_test


@workers(2)
def test_batch_norm_statistics_are_the_mean_over_the_workers() -> None:
    """With weights that stand still, each worker's running mean can be computed by hand."""
    world = current()
    recipe = Recipe(
        batch=12, epochs=1, rate=1e-30, precision="float64", model={"batch_norm": True}, recalibrate="never"
    )  # fmt: skip
    result = run(training(tiny_task(), recipe))
    linear, norm = result.model[0], result.model[1]  # type: ignore[index]
    mean, variance = torch.zeros(16, dtype=torch.float64), torch.ones(16, dtype=torch.float64)
    for inputs, _ in rueda.Loader(clouds(240, 1), 12, world=world, dtype=torch.float64):
        hidden = linear(inputs).detach()
        mean, variance = 0.9 * mean + 0.1 * hidden.mean(0), 0.9 * variance + 0.1 * hidden.var(0)
    assert not torch.allclose(norm.running_mean, mean)  # a worker alone has seen other batches
    assert torch.allclose(norm.running_mean, world.all_reduce(mean, "mean"))
    assert torch.allclose(norm.running_var, world.all_reduce(variance, "mean"))


@workers(2)
def test_early_stop_is_agreed(tmp_path: Path) -> None:
    result = rueda.fit(
        tiny_task(), Recipe(batch=12, epochs=30, rate=0.1, target_accuracy=0.6, patience=2), folder=tmp_path / "run",
        progress=False,
    )  # fmt: skip
    assert result.status == "reached-target" and result.row is not None
    rows = rueda.Run(tmp_path / "run").rows("epoch")
    assert current().all_gather_object(result.row.epoch) == [len(rows)] * 2
    reached = [row.test_accuracy is not None and row.test_accuracy >= 0.6 for row in rows]
    assert reached[-2:] == [True, True] and [True, True] not in [reached[i : i + 2] for i in range(len(reached) - 2)]


def test_a_target_accuracy_needs_a_metric_and_patience_a_target() -> None:
    with pytest.raises(TaskError, match=r"target_accuracy of task clouds.*no metric"):
        rueda.fit(replace(tiny_task(), metric=None), Recipe(target_accuracy=0.9), progress=False)
    with pytest.raises(RecipeError, match="--patience counts epochs at the target accuracy"):
        resolved_recipe(tiny_task(), TrainRequest(task="clouds.py", patience=2))


def test_metrics_have_the_promised_columns(tmp_path: Path) -> None:
    rueda.fit(tiny_task(), Recipe(batch=24, epochs=2, log_every=5), folder=tmp_path / "run", progress=False)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [(row["kind"], row["step"]) for row in lines] == [
        ("step", 5), ("step", 10), ("epoch", 10), ("step", 15), ("step", 20), ("epoch", 20),
    ]  # fmt: skip
    last = lines[-1]
    assert last["examples"] == 480 and last["global_batch"] == 24 and last["rate"] == 0.05 and last["epoch"] == 2
    assert last["seconds"] > 0 and last["images_per_second"] > 0
    assert 0 <= last["test_accuracy"] <= 1 and last["test_accuracy"] == last["test_correct"] / 101
    with pytest.raises(RunError, match="holds a run already"):
        rueda.fit(tiny_task(), folder=tmp_path / "run", progress=False)


@pytest.mark.parametrize("optimizer", ["sgd", "lamb", "lars", "novograd", "larc"])
def test_divergence_is_a_result(optimizer: str, tmp_path: Path) -> None:
    """A loss that is gone ends the run and is recorded, also where the optimizer refuses it first."""

    def infinite(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return squared_error(outputs.sum(1) * 1e30, targets.float())

    task = tiny_task()
    result = rueda.fit(
        Task(name="gone", model=task.model, train=task.train, test=task.test, loss=infinite),
        Recipe(batch=24, epochs=5, rate=10.0, optimizer=optimizer), folder=tmp_path / "run", progress=False,
    )  # fmt: skip
    assert result.status == "diverged" and result.row is not None and result.row.epoch == 1
    row = rueda.Run(tmp_path / "run").rows()[-1]
    assert row.diverged and row.train_loss is None


def test_seed_decides_everything() -> None:
    recipe = Recipe(batch=24, epochs=1, model={"dropout": 0.5})
    first, again, other = (parameters(run(training(tiny_task(), recipe.change(seed=seed))).model) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)


@workers(2)
def test_dropout_differs_between_workers() -> None:
    seen: list[torch.Tensor] = []

    class Watch(nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            mask = torch.nn.functional.dropout(torch.ones(len(inputs), 8), 0.5, self.training)
            seen.append(mask)
            return inputs * mask

    task = Task(
        name="watch", model=lambda: nn.Sequential(Watch(), nn.Linear(8, 3)),
        train=lambda: clouds(48, 1), test=lambda: clouds(5, 2), recipe=Recipe(batch=12, epochs=1),
    )  # fmt: skip
    run(training(task, task.recipe))
    mine, other = current().all_gather(torch.stack(seen[:2]))
    assert not torch.equal(mine, other)
    assert not torch.equal(mine[0], mine[1])  # nor is it the same at every step


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_autocast(precision: str) -> None:
    result = run(training(tiny_task(), Recipe(batch=24, epochs=4, rate=0.1, precision=precision)))
    assert result.row is not None and result.row.test_accuracy is not None and result.row.test_accuracy > 0.5
    assert all(parameter.dtype == torch.float32 for parameter in result.model.parameters())


def test_torch_dataset_as_data() -> None:
    arrays = tiny_task()
    train, test = arrays.load("train"), arrays.load("test")
    task = Task(
        name="dataset", model=arrays.model,
        train=torch.utils.data.TensorDataset(train.inputs, train.targets),
        test=lambda: torch.utils.data.TensorDataset(test.inputs, test.targets),
    )  # fmt: skip
    recipe = Recipe(batch=24, epochs=2)
    one, other = run(training(task, recipe)), run(training(arrays, recipe))
    assert torch.equal(parameters(one.model), parameters(other.model))
    assert one.row is not None and other.row is not None and one.row.test_correct == other.row.test_correct


BAD = {
    "an averaged loss": ({"loss": nn.functional.cross_entropy}, TaskError, r'one value per example.*reduction="none"'),
    "data of no kind": ({"train": 123}, TaskError, "expected rueda.Arrays, a torch Dataset or a stream, got 'int'"),
    "a model of no kind": ({"model": lambda: 3}, TaskError, "expected a torch.nn.Module"),
}


@pytest.mark.parametrize(("changes", "error", "message"), BAD.values(), ids=BAD)
def test_bad_tasks(changes: dict[str, object], error: type[Exception], message: str) -> None:
    task = tiny_task()
    parts = {"model": task.model, "train": task.train, "test": task.test, **changes}
    with pytest.raises(error, match=message):
        rueda.fit(Task(name="bad", **parts), Recipe(batch=24, epochs=1), progress=False)  # type: ignore[arg-type]


def test_recipe_and_workers_must_fit() -> None:
    with pytest.raises(RecipeError, match="for 8 workers, but 1 run; pass workers=8"):
        rueda.fit(tiny_task(), Recipe(workers=8), progress=False)
    with pytest.raises(TaskError, match=r"model.depth = 3 of the recipe"):
        rueda.fit(tiny_task(), Recipe(model={"depth": 3}), progress=False)


def test_what_is_no_recipe_and_no_number_of_workers() -> None:
    for words, message in (
        ({"workers": "2"}, "workers: expected a whole number, got '2'"),
        ({"workers": -1}, "workers: expected 1 or more, got -1"),
        ({"recipe": {"epochs": 2}}, "recipe: expected a rueda.Recipe, got 'dict'"),
    ):
        with pytest.raises(RecipeError, match=message):
            rueda.fit(tiny_task(), **words)  # type: ignore[arg-type]


def test_a_task_without_a_metric() -> None:
    result = run(training(rueda.load_task("linear"), rueda.load_task("linear").recipe))
    assert result.row is not None
    assert result.row.test_accuracy is None and result.row.train_accuracy is None
    # The noise stands inside the slope: the best mean squared error is about 100.
    assert result.row.test_loss is not None and 60 < result.row.test_loss < 160
    assert not math.isnan(result.row.train_loss or math.nan)
