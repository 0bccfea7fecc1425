"""Activation checkpointing: the same numbers, less memory, and a model that is left as it was."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rueda
from harness import workers
from rueda.errors import RecipeError, TaskError
from rueda.records import Recipe
from rueda.tasks.task import Task
from rueda.train.activation_checkpointing import Recomputation
from rueda.train.counting import SavedTensors
from rueda.world import current
from tinytask import assert_same, clouds, parameters, rehearsal, run, tiny_task, training

BASE = Recipe(
    batch=12, epochs=2, rate=0.05, precision="float64", recalibrate="never", model={"batch_norm": True, "dropout": 0.3}
)


def chain() -> nn.Module:
    layers = [(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU(inplace=True), nn.Dropout(0.3)) for _ in range(8)]
    return nn.Sequential(*(layer for block in layers for layer in block), nn.Linear(32, 3))


class Blocks(nn.Module):
    """A residual network of blocks whose buffer changes what each pass computes."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(6))

    def forward(self, hidden: Tensor) -> Tensor:
        for block in self.blocks:
            hidden = hidden + block(hidden, scale=0.5)
        return hidden


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(32, 32), nn.BatchNorm1d(32)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, hidden: Tensor, scale: float) -> Tensor:
        self.passes += 1
        result: Tensor = scale * nn.functional.gelu(self.norm(self.layer(hidden))).tanh() * self.passes
        return result


def passed(model: nn.Module, *, recomputed: bool) -> tuple[int, list[Tensor]]:
    """Make two updates of two passes; return the saved bytes of the last pass, and all numbers."""
    torch.manual_seed(1)
    found = Recomputation(model) if recomputed else None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        saved = []
        for _ in range(2):
            saved.append(SavedTensors([*model.parameters(), *model.buffers()]))
            inputs = torch.randn(64, 32)
            with saved[-1].hooks():
                if found is None:
                    outputs = model(inputs)
                else:
                    with found.of_forward_pass():
                        outputs = model(inputs)
            outputs.square().mean().backward()
        optimizer.step()
        gradients = [one.grad.clone() for one in model.parameters() if one.grad is not None]
        optimizer.zero_grad()
    return saved[-1].num_bytes, [*gradients, *model.state_dict().values(), torch.rand(1)]


@pytest.mark.parametrize(("build", "share"), [(chain, 0.35), (Blocks, 0.3)])
def test_the_numbers_stay_and_the_saved_tensors_shrink(build: Callable[[], nn.Module], share: float) -> None:
    first = build()
    second = copy.deepcopy(first)
    names = list(first.state_dict())
    plain, numbers = passed(first, recomputed=False)
    less, same = passed(second, recomputed=True)
    assert_same(numbers, same)
    assert less < share * plain
    assert list(second.state_dict()) == names and pickle.loads(pickle.dumps(second)) is not None
    assert all("forward" not in module.__dict__ for module in second.modules())


CASES: dict[str, dict[str, Any]] = {
    "dropout, batch norm, accumulated": {"accumulate": 2, "gradient_compression": "bf16"},
    "ghost batch norm, clipped": {"ghost_batch": 6, "clip": 0.5},
    "synchronised batch norm": {"sync_batch_norm": True, "model": {"batch_norm": True}},
    "local SGD": {"sync_every": 3},
}


@pytest.mark.parametrize("case", CASES)
@workers(2)
def test_two_workers_train_as_without_and_as_rehearsed(case: str) -> None:
    world = current()
    recipe = BASE.change(workers=2, **CASES[case])
    task = tiny_task(recipe.global_batch * 5)
    first, second = (training(task, recipe.change(activation_checkpointing=one)) for one in (False, True))
    run(first)
    run(second)
    assert_same(first.model.state_dict(), second.model.state_dict())
    if world.is_main and not recipe.sync_batch_norm:  # which would wait for the other process
        virtual = rehearsal(task, recipe.change(activation_checkpointing=True))
        run(virtual)
        assert float((parameters(virtual.model) - parameters(second.model)).abs().max()) < 1e-10
        for name, buffer in second.model.named_buffers():
            assert torch.allclose(virtual.model.get_buffer(name), buffer, rtol=1e-9), name
    world.barrier()


@pytest.mark.parametrize(
    "name", ["text-transformer", "bytes-classifier", "glyphs-vit", "cifar10-resnet", "table-classes"]
)
def test_the_builtin_models_have_layers(name: str) -> None:
    task = rueda.load_task(name)
    model = task.build(task.recipe)
    assert Recomputation(model, task.layers).num_segments > 1


def test_a_checkpoint_continues_with_and_without(tmp_path: Any) -> None:
    recipe = BASE.change(epochs=1)
    task = tiny_task(120)
    rueda.fit(task, recipe, folder=tmp_path, progress=False)
    again = recipe.change(epochs=2, activation_checkpointing=True)
    resumed = rueda.fit(task, again, folder=tmp_path, resume=True, progress=False)
    through = run(training(task, recipe.change(epochs=2), alone=True))
    assert torch.equal(parameters(resumed.model), parameters(through.model))


class Overwriting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 8))])
        self.last = nn.Linear(8, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = self.last(self.blocks[0](inputs * 2))
        return result


def test_what_cannot_be_computed_again_is_refused_in_one_line() -> None:
    with pytest.raises(RecipeError, match="compile chooses by itself"):
        Recipe(compile=True, activation_checkpointing=True)
    with pytest.raises(TaskError, match="got 'Linear without"):
        Recomputation(nn.Linear(2, 2))
    with pytest.raises(RecipeError, match="activation_checkpointing is rehearsed for one worker at a time"):
        rehearsal(tiny_task(), BASE.change(workers=2, sync_batch_norm=True, activation_checkpointing=True))
    with pytest.raises(RecipeError, match="gradient_compression is rehearsed for one worker at a time"):
        rehearsal(tiny_task(), BASE.change(workers=2, sync_batch_norm=True, gradient_compression="fp16"))
    data = clouds(48, 1)
    task = Task(name="over", model=Overwriting, train=lambda: data, test=lambda: data, recipe=Recipe())
    with pytest.raises(TaskError, match="again from its input, which it overwrites"):
        run(training(task, Recipe(batch=8, epochs=1, activation_checkpointing=True), alone=True))
    own = Task(
        name="own", model=Overwriting, train=lambda: data, test=lambda: data, recipe=Recipe(),
        layers=lambda model: [model.last],
    )  # fmt: skip
    run(training(own, Recipe(batch=8, epochs=1, activation_checkpointing=True), alone=True))


class Split(nn.Module):
    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        return inputs * 2, inputs.exp()


class Joined(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, both: tuple[Tensor, Tensor]) -> Tensor:
        outputs: Tensor = self.linear(both[0] + both[1])
        return outputs


@pytest.mark.parametrize("place", [0, 1])
def test_a_sequence_passes_a_tuple_as_one_argument(place: int) -> None:
    others = [nn.Linear(3, 3), nn.Linear(3, 3)]
    model = nn.Sequential(*others[:place], Split(), Joined(), *others[place:])
    inputs = torch.ones(2, 3)
    expected = model(inputs)
    with Recomputation(model).of_forward_pass():
        found = model(inputs)
    assert torch.equal(found, expected)
    found.sum().backward()
    assert all(one.grad is not None for one in model.parameters())
