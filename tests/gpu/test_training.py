"""Recipes, resume, measure and examine on the impostor, with the numbers of the CPU."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn

import rueda
from gpu.bench import on_impostor
from rueda.records import Recipe
from rueda.records.recipe.named import NAMED, named_recipe
from rueda.tasks.task import Task
from tinytask import clouds, parameters, rehearsal, run, tiny_task, training

CPU = torch.device("cpu")
BASE = Recipe(batch=8, epochs=2, rate=0.05, model={"dropout": 0.2}, precision="float64")
WORKERS = 3


def trained(recipe: Recipe, device: torch.device, *, rehearse: bool) -> tuple[torch.Tensor, list[Any], bool]:
    """Train the small task on a device; return parameters, rows without times, and whether workers ran alone."""
    from rueda.train.training import Training
    from rueda.world import World

    job = Training(tiny_task(120, 61), recipe, World(device=device), rehearse=rehearse)
    assert next(job.model.parameters()).device == device
    rows: list[Any] = []
    run(job, rows)
    told = [{name: value for name, value in asdict(row).items() if "second" not in name} for row in rows]
    return parameters(job.model).cpu(), told, getattr(job.updater, "_one_by_one", False)


def assert_close(one: Any, other: Any) -> None:
    """Compare rows: equal words and whole numbers, and other numbers within rounding."""
    for mine, theirs in zip(one, other, strict=True):
        assert mine.keys() == theirs.keys()
        for name, value in mine.items():
            if isinstance(value, float):
                assert value == pytest.approx(theirs[name], rel=1e-9, nan_ok=True), name
            elif isinstance(value, dict):
                assert_close([value], [theirs[name]])
            else:
                assert value == theirs[name], name


@pytest.mark.slow
@on_impostor()
def test_every_named_recipe_has_the_numbers_of_the_cpu() -> None:
    device = torch.device("cuda", 1)
    torch.cuda.set_device(device)
    try:
        for name in NAMED:
            recipe = named_recipe(name, BASE, 1 if name == "one-worker" else WORKERS)
            here = trained(recipe, device, rehearse=recipe.workers > 1)
            there = trained(recipe, CPU, rehearse=recipe.workers > 1)
            assert torch.allclose(here[0], there[0], rtol=1e-9, atol=1e-12), name
            assert_close(here[1], there[1])
            # Dropout draws on the device, for each worker from its own generator, also in a group of workers.
            compares = recipe.adascale or recipe.gradient_compression != "none"  # each worker's own gradient
            assert here[2] == there[2] == compares, name
    finally:
        torch.cuda.set_device(0)


@on_impostor()
def test_other_recipes_have_the_numbers_of_the_cpu() -> None:
    norm = {"dropout": 0.2, "batch_norm": True}
    table: dict[str, Recipe] = {
        "adamw, cosine, clip": BASE.change(optimizer="adamw", rate=1e-3, schedule="cosine", clip=0.5),
        "synchronised batch norm": BASE.change(model=norm, sync_batch_norm=True),
        "accumulation, noise scale by group": BASE.change(accumulate=2, noise_scale_every=2, noise_scale_groups=True),
        "additive noise is drawn on the device": BASE.change(additive_noise=0.01),
        "recalibration": BASE.change(model=norm, recalibrate="always"),
    }
    for name, recipe in table.items():
        here, there = (trained(recipe, device, rehearse=False) for device in (torch.device("cuda", 0), CPU))
        assert torch.allclose(here[0], there[0], rtol=1e-9, atol=1e-12), name
        assert_close(here[1], there[1])
    here, there = (
        trained(BASE.change(precision="float32", model=norm), device, rehearse=False)
        for device in (torch.device("cuda", 0), CPU)
    )
    assert torch.allclose(here[0], there[0], rtol=1e-4, atol=1e-5)
    for precision in ("bf16", "fp16"):
        found = trained(BASE.change(precision=precision), torch.device("cuda", 0), rehearse=False)
        assert torch.isfinite(found[0]).all()


@on_impostor()
def test_resume_is_bit_for_bit(tmp_path: Path) -> None:
    recipe = BASE.change(
        epochs=3, precision="float32", optimizer="lamb", rate=0.01, checkpoint_every=2,
        model={"dropout": 0.2, "batch_norm": True},
    )  # fmt: skip
    whole = rueda.fit(tiny_task(), recipe, progress=False, folder=tmp_path / "whole")
    rueda.fit(tiny_task(), recipe.change(epochs=1), progress=False, folder=tmp_path / "parts")
    parts = rueda.fit(tiny_task(), recipe, progress=False, folder=tmp_path / "parts", resume=True)
    assert next(whole.model.parameters()).is_cuda
    assert torch.equal(parameters(whole.model), parameters(parts.model))
    assert whole.row is not None and parts.row is not None
    assert whole.row.test_loss == parts.row.test_loss


@on_impostor()
def test_measure_and_examine(tmp_path: Path) -> None:
    from rueda.examine.curvature.hessian import hessian
    from rueda.examine.objective.objective import Objective
    from rueda.measure import measure
    from rueda.measure.request import Budget

    budget = Budget(steps=0.3, communication=0.1, together=0.3, noise=0.2, longest_step=0.5, sizes=(4, 4096))
    profile = measure(tiny_task(), batches=[8, 16], budget=budget, workers=[1])
    assert profile.device == "Impostor" and profile.memory_bytes == 16 << 30
    assert all(step.seconds > 0 for step in profile.steps) and profile.noise

    found = []
    for device in (torch.device("cuda", 0), CPU):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).double().to(device)
        data = clouds(60, 1)
        losses = nn.CrossEntropyLoss(reduction="none")
        with Objective(model, losses, data.inputs.double(), data.targets) as objective:
            assert objective.device == device
            found.append(
                (objective.value(), hessian(objective, num_eigenvalues=2, tolerance=1e-6, density=False).eigenvalues)
            )
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-12)
    assert [one.value for one in found[0][1]] == pytest.approx([one.value for one in found[1][1]], rel=1e-6)


@on_impostor()
def test_an_evaluation_halves_its_batch_when_memory_is_full() -> None:
    from gpu import impostor
    from rueda.train.evaluate import Evaluator
    from rueda.train.training import Training
    from rueda.world import World

    class Wide(nn.Module):
        """The activations of one example take 64 kB."""

        def __init__(self, dropout: float = 0.0) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(8, 16_000), nn.Linear(16_000, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.first(x).relu())

    task = Task(name="wide", model=Wide, train=lambda: clouds(64, 1), test=lambda: clouds(301, 2), recipe=Recipe())
    device = torch.device("cuda", 5)
    job = Training(task, Recipe(batch=8, model={}), World(device=device))
    job.step()
    torch.cuda.reset_peak_memory_stats(device)
    expected = Evaluator(job).run().test
    by_default = torch.cuda.max_memory_allocated(device)
    asked = Training(task, Recipe(batch=8, evaluation_batch=301), World(device=device))
    asked.model.load_state_dict(job.model.state_dict())
    evaluator = Evaluator(asked)
    torch.cuda.reset_peak_memory_stats(device)
    assert evaluator.run().test.counts == expected.counts
    assert torch.cuda.max_memory_allocated(device) > 3 * by_default - 2 * torch.cuda.memory_allocated(device)
    try:
        impostor.set_capacity(torch.cuda.memory_allocated(device) + 60 * 64_000, 5)
        found = evaluator.run().test
        assert (found.counts, found.num_examples) == (expected.counts, 301)
        assert found.loss == pytest.approx(expected.loss, rel=1e-6)
        assert evaluator._memory.most is not None and evaluator._memory.most < 60
        impostor.set_capacity(torch.cuda.memory_allocated(device), 5)
        with pytest.raises(torch.OutOfMemoryError):  # not even one example fits
            evaluator.run()
    finally:
        impostor.set_capacity(16 << 30, 5)


@on_impostor(workers=2)
def test_two_devices_train_as_one_rehearses() -> None:
    from rueda.world import current

    world = current()
    for changes in (
        {"model": {"dropout": 0.2, "batch_norm": True}},
        {"optimizer": "lamb", "rate": 0.01},
        {"adascale": True},
    ):
        recipe = BASE.change(workers=2, **changes)
        job = training(tiny_task(), recipe)
        assert job.world is world and next(job.model.parameters()).device == world.device
        result = run(job)
        alone = rehearsal(tiny_task(), recipe)  # on the CPU
        expected = run(alone)
        assert torch.allclose(parameters(job.model).cpu(), parameters(alone.model), rtol=1e-9, atol=1e-12), changes
        assert result.row is not None and expected.row is not None
        assert result.row.test_accuracy == expected.row.test_accuracy


@on_impostor(workers=2)
def test_resume_and_measure_on_two_devices(tmp_path: Path) -> None:
    from gpu.recorder import Recorder
    from rueda.measure.communication import measure_communication
    from rueda.world import current

    world = current()
    folder = world.broadcast_object(tmp_path)
    recipe = BASE.change(workers=2, precision="float32")
    rueda.fit(tiny_task(), recipe.change(epochs=1), progress=False, folder=folder / "parts")
    parts = rueda.fit(tiny_task(), recipe, progress=False, folder=folder / "parts", resume=True)
    whole = rueda.fit(tiny_task(), recipe, progress=False, folder=folder / "whole")
    assert torch.equal(parameters(parts.model), parameters(whole.model))
    with Recorder() as record:
        link = measure_communication(world, sizes=(4, 4096, 65536), seconds=0.1)
    assert link.backend == "nccl" and link.latency >= 0
    # Timed by events on the worker's own device: the host waits once for each series of all-reduces, not for each.
    events = [where for what, where in record.calls if what == "record"]
    assert {device for device, _ in events} == {world.rank}
    assert sum(what == "event.synchronize" for what, _ in record.calls) < len(events) / 3
    assert not any(what == "synchronize" for what, _ in record.calls)


@on_impostor()
def test_utilisation_of_a_gpu_that_is_known_by_its_name() -> None:
    from gpu.recorder import Recorder

    flops = 2 * (2 * 8 * 16 + 3 * 16 * 3)  # of one example: two products for the first layer, three for the last
    with patch.object(torch.cuda, "get_device_name", lambda device=None: "NVIDIA A100-SXM4-40GB"):
        for precision, peak in {"bf16": 312e12, "float32": 156e12, "float64": 19.5e12}.items():
            row = rueda.fit(tiny_task(), BASE.change(precision=precision), progress=False).row
            assert row is not None
            assert row.model_flops_utilisation == pytest.approx(flops * row.images_per_second / peak, rel=1e-9)
        job = training(tiny_task(), BASE)
    job.step()
    assert job.utilisation is not None
    before = torch.cuda.memory_allocated()
    with Recorder() as record:
        assert job.utilisation.at(1.0) is not None
    assert not record.calls and not record.waits and torch.cuda.memory_allocated() == before


def test_the_evaluation_batch_is_checked() -> None:
    assert replace(BASE, evaluation_batch=3).evaluation_batch == 3
    with pytest.raises(rueda.RuedaError, match="evaluation_batch"):
        Recipe(evaluation_batch=0)
