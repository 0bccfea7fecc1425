"""Whole trainings in each parallel form: the figures of one worker, and checkpoints that resume in any other form."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rueda
from everyform import every_or
from harness import workers
from rueda.errors import RecipeError, TaskError
from rueda.measure.wire_bytes import WireBytes
from rueda.records import Recipe, Row
from rueda.records.recipe.parallel_form import mesh_of
from rueda.tasks import models
from rueda.tasks.task import Task
from rueda.train.evaluate import Evaluator
from rueda.train.parallel.sharding import sharded_layers
from rueda.train.parallel.tensor_plan import styles_of
from rueda.train.state import checkpoint_contents, restore
from rueda.train.training import Training
from rueda.world import World, current
from tinytask import network, parameters, rehearsal, run, tiny_task

BATCH = 24
RECIPE = Recipe(
    batch=BATCH, epochs=2, rate=0.05, precision="float64", parallel="pipeline", micro_batches=4, clip=1.0,
    base_batch=BATCH,
)  # fmt: skip
"""on one worker the whole model, in other forms without the fields of pipelines"""


def in_form(recipe: Recipe, form: str, workers: int) -> Recipe:
    """Return the recipe in a form, with the same global batch."""
    return recipe.change(parallel=form, workers=workers, batch=BATCH // mesh_of(form, workers).replicas)


def figures(rows: list[Row]) -> list[float]:
    epochs = [row for row in rows if row.kind == "epoch"]
    return [value for row in epochs for value in (row.step, row.train_loss, row.test_loss, row.test_accuracy)]  # type: ignore[misc]


def trained(task: Task, recipe: Recipe, world: World) -> tuple[list[float], torch.Tensor]:
    rows: list[Row] = []
    result = run(Training(task, recipe, world), rows)
    return figures(rows), parameters(result.model) if world.is_main else torch.zeros(0)


def is_that_of_one_worker(task: Task, recipe: Recipe, forms: list[str]) -> None:
    world = current()
    wanted = trained(task, recipe, World())
    for form in forms:
        found = trained(task, in_form(recipe, form, world.size), world)
        assert found[0] == pytest.approx(wanted[0], rel=1e-9), form
        if world.is_main:
            assert torch.allclose(found[1], wanted[1], rtol=0, atol=1e-10), form


@workers(2)
def test_a_training_is_that_of_one_worker() -> None:
    is_that_of_one_worker(tiny_task(), RECIPE.change(ema_decay=0.9), ["sharded", "tensor"])


@workers(4)
def test_a_training_in_two_forms_is_that_of_one_worker() -> None:
    forms = ["data 2 x tensor 2", "sharded 2 x tensor 2", "data 2 x sharded 2"]
    is_that_of_one_worker(tiny_task(), RECIPE.change(optimizer="lamb", rate=1e-2, epochs=1), forms)


@workers(2)
def test_batch_norm_is_that_of_data_parallelism() -> None:
    task = replace(tiny_task(), model=partial(network, batch_norm=True))
    recipe = in_form(RECIPE, "data", 2).change(recalibrate="always")
    wanted = trained(task, recipe, current())
    assert Evaluator(Training(task, recipe.change(parallel="sharded"), current())).run().recalibrated  # before a step
    found = trained(task, recipe.change(parallel="sharded"), current())
    assert found[0] == pytest.approx(wanted[0], rel=1e-9)
    assert torch.allclose(found[1], wanted[1], rtol=0, atol=1e-10)


def contents_of(training: Training) -> dict[str, Any]:
    """Return a checkpoint on all workers."""
    return training.world.broadcast_object(checkpoint_contents(training))


def deep() -> nn.Module:
    """Return a model of five layers, all trained, for four stages, and pairs of matrices to split."""
    blocks = [nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)) for _ in range(4)]
    return nn.Sequential(*blocks, nn.Linear(8, 3))


def resumes_in_other_forms(task: Task, recipe: Recipe, pairs: list[tuple[str, str]]) -> None:
    world = current()
    alone = Training(task, recipe, World())
    kept: dict[str, dict[str, Any]] = {}
    for form in dict.fromkeys(form for form, _ in pairs):
        first = Training(task, in_form(recipe, form, world.size), world)
        for _ in range(7):
            first.step()
        kept[form] = contents_of(first)
    for _ in range(7):
        alone.step()
    of_one = copy.deepcopy(checkpoint_contents(alone))
    for _ in range(8):
        alone.step()
    of_forms = [(kept[former], former, form) for former, form in pairs]
    for contents, former, form in [*of_forms, *[(of_one, "one worker", form) for form in kept]]:
        again = Training(task, in_form(recipe, form, world.size), world)
        restore(again, Path(former), copy.deepcopy(contents))  # as from a file: an optimizer keeps what it loads
        for _ in range(8):
            again.step()
        assert (again.state.step, again.state.clock) == (alone.state.step, alone.state.clock), (former, form)
        model = again.whole_model()
        if world.is_main:
            difference = (parameters(model) - parameters(alone.model)).abs().max().item()
            assert difference <= 1e-12, (former, form, difference)
    for former, contents in kept.items():
        back = Training(task, recipe, World())
        restore(back, Path(former), contents)
        for _ in range(8):
            back.step()
        difference = (parameters(back.model) - parameters(alone.model)).abs().max().item()
        assert difference <= 1e-12, (former, "one worker", difference)


@workers(2)
def test_checkpoints_of_each_form_resume_in_each_other() -> None:
    forms = ["data", "sharded", "pipeline", "tensor"]
    pairs = [(former, form) for former in forms for form in forms]
    resumes_in_other_forms(tiny_task(), RECIPE.change(optimizer="adamw", rate=1e-2), pairs)


@pytest.mark.slow
@workers(4)
def test_checkpoints_of_combinations_resume_in_others() -> None:
    forms = ["data", "data 2 x sharded 2", "sharded", "sharded 2 x tensor 2", "data 2 x tensor 2", "tensor"]
    forms += ["data 2 x pipeline 2", "pipeline"]
    pairs = every_or(list(zip(forms, [*forms[3:], *forms[:3]], strict=True)), forms, forms)
    resumes_in_other_forms(replace(tiny_task(), model=deep), RECIPE.change(optimizer="lamb", rate=1e-2), pairs)


def images_task() -> Task:
    """Return a CNN, which data parallelism stores channels last, and sharding does not."""
    generator = torch.Generator().manual_seed(0)
    data = rueda.Arrays(torch.randn(48, 3, 8, 8, generator=generator), torch.randint(0, 4, (48,), generator=generator))
    model = partial(models.small_cnn, in_channels=3, image_size=8, num_classes=4, width=4)
    return Task(name="images", model=model, train=lambda: data, test=lambda: data)


@workers(2)
def test_a_checkpoint_resumes_in_another_memory_format() -> None:
    recipe = RECIPE.change(precision="float32", optimizer="adamw", rate=1e-2, epochs=4)
    for former, form in (("sharded", "data"), ("data", "sharded")):
        training = Training(images_task(), in_form(recipe, former, 2), current())
        for _ in range(3):
            training.step()
        again = Training(images_task(), in_form(recipe, form, 2), current())
        restore(again, Path(former), copy.deepcopy(contents_of(training)))
        for _ in range(3):
            training.step()
            again.step()
        wanted, found = training.whole_model(), again.whole_model()
        if current().is_main:
            assert torch.allclose(parameters(found), parameters(wanted), rtol=0, atol=1e-5), (former, form)


@workers(2)
def test_bf16_is_that_of_data_parallelism() -> None:
    recipe = RECIPE.change(precision="bf16", epochs=1)
    wanted = trained(tiny_task(), in_form(recipe, "data", 2), current())[0]
    for form in ("sharded", "tensor"):
        found = trained(tiny_task(), in_form(recipe, form, 2), current())[0]
        assert found[:3] == pytest.approx(wanted[:3], rel=0.02), form


@workers(2)
def test_bf16_gathers_parameters_and_averages_gradients_in_float32() -> None:
    counts = []
    for precision in ("float32", "bf16"):
        recipe = in_form(RECIPE.change(precision=precision), "sharded", 2)
        training = Training(tiny_task(), recipe, current())
        training.step()
        with WireBytes() as wire:
            training.step()
        counts.append([wire.num_bytes(kind) for kind in ("all-gather", "reduce-scatter")])
    assert counts[0] == counts[1] and min(counts[0]) > 0


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs * self.scale


def with_scalar() -> Task:
    return replace(tiny_task(), model=lambda: nn.Sequential(nn.Linear(8, 3), Scale()))


def frozen() -> Task:
    """Return a task of two layers, of which the first one is not trained."""
    return replace(tiny_task(), model=lambda: nn.Sequential(nn.Linear(8, 8).requires_grad_(False), nn.Linear(8, 3)))


def overwriting() -> nn.Sequential:
    """Return a model with batch norm before and behind a split pair, and functions that overwrite its outputs."""
    pair = nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 8), nn.ReLU(inplace=True)
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), *pair, nn.BatchNorm1d(8), nn.Linear(8, 3))


@workers(2)
def test_layers_beside_split_ones_may_overwrite_and_read_their_outputs() -> None:
    task = replace(tiny_task(), model=overwriting)
    recipe = RECIPE.change(epochs=1, ghost_batch=12, recalibrate="always")
    is_that_of_one_worker(task, recipe, ["tensor"])


@workers(2)
def test_what_is_refused() -> None:
    lone = replace(tiny_task(), model=lambda: nn.Sequential(nn.Linear(8, 3)))
    no_style = replace(tiny_task(), tensor_plan={"0": None})
    for task, recipe, error, message in (
        (tiny_task(), RECIPE.change(parallel="data 2 x tensor 2"), RecipeError, "expected 4 workers, got 2"),
        (lone, RECIPE.change(parallel="tensor"), RecipeError, r"expected two linear layers in a row.*tensor_plan"),
        (no_style, RECIPE.change(parallel="tensor"), TaskError, r"expected a style of torch.distributed"),
        (with_scalar(), RECIPE.change(parallel="sharded"), RecipeError, r"got '1\.scale of shape \[\]'; make it one"),
        (frozen(), RECIPE.change(parallel="pipeline"), RecipeError, r"require a gradient on each.*none on worker 0"),
        (tiny_task(), RECIPE.change(parallel="sharded", compile=True), RecipeError, "compile is not supported"),
    ):
        with pytest.raises(error, match=message):
            Training(task, recipe.change(workers=2), current())


class Named(nn.Module):
    """Has layers with names."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.ReLU()
        self.blocks = nn.ModuleList([nn.ModuleDict({"up": nn.Linear(4, 8), "down": nn.Linear(8, 4)})])


UNKNOWN = {
    "misspelt": (("blocks.0.upp", "blocks.*.down"), "got 'blocks.0.upp'; did you mean blocks.0.up?"),
    "two": (("block.0.up", "block.0.down"), "got 'block.0.up, block.0.down'; did you mean blocks.0.up, blocks.0.down?"),
    "nothing like it": (
        ("encoder.*",),
        "got 'encoder.*'; name modules as model.named_modules() does, such as blocks.0.up, blocks.0.down",
    ),
}


@pytest.mark.parametrize(("names", "message"), UNKNOWN.values(), ids=list(UNKNOWN))
def test_names_of_a_plan_that_are_no_layers_are_told_with_similar_ones(names: tuple[str, ...], message: str) -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel

    with pytest.raises(TaskError) as caught:
        styles_of(Named(), dict.fromkeys(names, ColwiseParallel()))
    assert str(caught.value) == f"tensor_plan: expected names of modules of the model, {message}"


@workers(2)
def test_a_plan_of_the_task() -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    task = replace(tiny_task(), tensor_plan={"0": ColwiseParallel(), "3": RowwiseParallel()})
    recipe = RECIPE.change(epochs=1)
    training = Training(task, in_form(recipe, "tensor", 2), current())
    assert training.updater.remarks == ["tensor: 2 weights split over 2 workers; whole on each: nothing"]
    is_that_of_one_worker(task, recipe, ["tensor"])


class Residual(nn.Module):
    """Does something between its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
        self.last = nn.Linear(8, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            inputs = inputs + layer(inputs)
        outputs: torch.Tensor = self.last(inputs)
        return outputs


class Forked(nn.Module):
    """Concatenates, as a U-Net does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(16, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        first = self.first(inputs)
        outputs: torch.Tensor = self.last(torch.cat([first, self.second(first)], dim=1))
        return outputs


class Normed(nn.Sequential):
    """A sequence with a forward pass of its own."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self[1](torch.softmax(self[0](inputs), dim=1))
        return outputs


@workers(2)
def test_a_model_that_does_more_than_its_layers_in_a_row_is_not_cut() -> None:
    named = replace(tiny_task(), model=Residual, layers=lambda model: [*model.layers, model.last])
    forked = replace(tiny_task(), model=Forked, layers=lambda model: [model.first, model.second, model.last])
    own_forward = replace(tiny_task(), model=lambda: Normed(nn.Linear(8, 8), nn.Linear(8, 3)))
    for task, message in (
        (named, "in a row: expected the outputs of the model, got 'other outputs'"),
        (forked, "in a row: expected the outputs of the model, got 'RuntimeError: "),
        (own_forward, "expected an nn.Sequential.*got 'Normed with a forward pass of its own'"),
    ):
        with pytest.raises(TaskError, match=message):
            Training(task, in_form(RECIPE, "pipeline", 2), current())


@workers(2)
def test_a_sequence_with_a_forward_pass_of_its_own_is_not_split() -> None:
    inner = replace(tiny_task(), model=lambda: nn.Sequential(Normed(nn.Linear(8, 8), nn.Linear(8, 3))))
    with pytest.raises(RecipeError, match="expected two linear layers in a row"):
        Training(inner, in_form(RECIPE, "tensor", 2), current())


def with_a_layer_used_twice() -> nn.Module:
    layer = nn.Linear(8, 8)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3))


def with_weight_norm() -> nn.Module:
    norm = nn.utils.parametrizations.weight_norm
    return nn.Sequential(norm(nn.Linear(8, 8)), nn.ReLU(), norm(nn.Linear(8, 6)), nn.Linear(6, 6), nn.Linear(6, 3))


class Doubled(nn.Linear):
    """A linear layer with a forward pass of its own."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.softmax(super().forward(inputs), dim=-1)


def with_an_own_linear_layer() -> nn.Module:
    return nn.Sequential(Doubled(8, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))


@workers(2)
def test_layers_that_are_used_twice_or_have_more_than_a_weight() -> None:
    for model in (with_a_layer_used_twice, with_weight_norm, with_an_own_linear_layer):
        task = replace(tiny_task(), model=model)
        is_that_of_one_worker(task, RECIPE.change(epochs=1), ["tensor"])
    repeated = replace(tiny_task(), model=with_a_layer_used_twice, layers=list)
    is_that_of_one_worker(repeated, RECIPE.change(epochs=1), ["sharded"])


class ReadsWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.second(nn.functional.linear(inputs, self.first.weight))
        return outputs


def gathers(model: nn.Module, batch: Any) -> torch.Tensor:
    return rueda.gather(model(batch[0])).square().sum(1)


@workers(2)
def test_a_step_that_reads_the_weights_of_a_layer() -> None:
    task = replace(tiny_task(), model=ReadsWeights)
    with pytest.raises(RecipeError, match="reads the weights of a layer that it does not call"):
        Training(task, in_form(RECIPE, "sharded", 2), current()).step()


class HalfUsed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pair = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
        self.spare = nn.Linear(8, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.pair(inputs)
        return outputs


@workers(4)
def test_a_parameter_without_a_gradient_is_refused_as_by_data_parallelism() -> None:
    task = replace(tiny_task(), model=HalfUsed)
    for form in ("data", "data 2 x tensor 2"):
        training = Training(task, in_form(RECIPE, form, 4), current())
        with pytest.raises(TaskError, match="did not use all parameters"):
            for _ in range(2):
                training.step()


@workers(4)
def test_a_step_that_gathers() -> None:
    task = replace(tiny_task(), step=gathers, metric=None)
    with pytest.raises(RecipeError, match="those of a pipeline or of a tensor group share their examples"):
        Training(task, in_form(RECIPE, "data 2 x tensor 2", 4), current()).step()


def test_a_rehearsal_of_sharded_is_that_of_data() -> None:
    recipe = in_form(RECIPE.change(epochs=1), "sharded", 4)
    job, other = rehearsal(tiny_task(), recipe), rehearsal(tiny_task(), recipe.change(parallel="data"))
    assert any("whose numbers are those of sharded" in line for line in job.updater.remarks)
    for _ in range(3):
        job.step()
        other.step()
    assert torch.equal(parameters(job.model), parameters(other.model))


def test_which_layers_are_gathered_by_themselves() -> None:
    model = rueda.load_task("text-transformer").model()
    assert [type(one).__name__ for one in sharded_layers(model)] == ["Block"] * len(model.blocks)
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    tied[2].weight = tied[0].weight
    assert sharded_layers(tied) == [tied[1]]
