"""A task that trains in a blink: clouds of points in 8 dimensions, 3 classes, a network of two layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import rueda
from rueda.records import Recipe, Row
from rueda.tasks.task import Task
from rueda.train import Result
from rueda.train.loop import run_epochs
from rueda.train.recorder import Recorder
from rueda.train.training import StepResult, Training
from rueda.world import World, current


def clouds(num_examples: int, seed: int) -> rueda.Arrays:
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(0, 3, (num_examples,), generator=generator)
    centres = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    inputs = centres[targets] + 1.5 * torch.randn(num_examples, 8, generator=generator)
    return rueda.Arrays(inputs, targets)


def network(dropout: float = 0.0, batch_norm: bool = False) -> nn.Module:
    norm = [nn.BatchNorm1d(16)] if batch_norm else []
    return nn.Sequential(nn.Linear(8, 16, bias=not batch_norm), *norm, nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, 3))


def tiny_task(num_train: int = 240, num_test: int = 101) -> Task:
    return Task(
        name="clouds",
        model=network,
        train=lambda: clouds(num_train, 1),
        test=lambda: clouds(num_test, 2),
        recipe=Recipe(batch=24, epochs=2, rate=0.1),
    )


def training(task: Task, recipe: Recipe, *, alone: bool = False) -> Training:
    """Prepare a training on the workers of the test, or on this one alone."""
    world = World() if alone else current()
    return Training(task, recipe.change(workers=world.size), world)


def run(job: Training, rows: list[Row] | None = None) -> Result:
    """Train to the end without a run folder; what would be written is added to ``rows``."""
    recorder = Recorder(job)
    if rows is not None:
        recorder.append = rows.append  # type: ignore[method-assign]
    return run_epochs(job, recorder)


def parameters(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def assert_same(first: object, second: object, where: str = "state") -> None:
    if isinstance(first, torch.Tensor):
        assert isinstance(second, torch.Tensor) and torch.equal(first, second), where
    elif isinstance(first, dict):
        assert isinstance(second, dict) and first.keys() == second.keys(), where
        for key in first:
            assert_same(first[key], second[key], f"{where}.{key}")
    elif isinstance(first, list):
        assert isinstance(second, list) and len(first) == len(second), where
        for index, (one, other) in enumerate(zip(first, second, strict=True)):
            assert_same(one, other, f"{where}[{index}]")
    else:
        assert first == second, where


def rehearsal(task: Task, recipe: Recipe) -> Training:
    """Prepare a rehearsal of the recipe's workers in this process."""
    return Training(task, recipe, World(), rehearse=True)


def stop_before(monkeypatch: pytest.MonkeyPatch, job_step: int) -> None:
    """Let trainings fail after this update, before it is recorded."""
    original = Training.step

    def step(self: Training, **options: Any) -> StepResult:
        result = original(self, **options)
        if self.state.step == job_step:
            raise RuntimeError("stop")
        return result

    monkeypatch.setattr(Training, "step", step)
