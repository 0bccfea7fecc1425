"""Rehearsal: N virtual workers give the numbers of N real ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import rueda
from harness import workers
from rueda.errors import RecipeError
from rueda.nn import sync_batch_norm
from rueda.optim import AdaScale
from rueda.records import Recipe
from rueda.tasks.task import Task
from rueda.train import rehearsal as module
from rueda.train.normalisation import spread_batches
from rueda.world import World, current
from tinytask import clouds, parameters, rehearsal, run, tiny_task, training

GROUPED = module.GROUP_EXAMPLES
BASE = Recipe(batch=12, epochs=2, rate=0.05, model={"batch_norm": True, "dropout": 0.3}, recalibrate="never")
CASES = {
    "batch norm and dropout": BASE,
    "LAMB": BASE.change(optimizer="lamb", rate=0.01),
    "gradient noise": BASE.change(gradient_noise=1.0),
    "batch growth": BASE.change(epochs=3, growth_factor=2.0, milestones=(1.0,), largest_batch=96),
    "accumulation": BASE.change(batch=6, accumulate=2),
    "ghost batch norm": BASE.change(ghost_batch=4),
    "synchronised batch norm": BASE.change(sync_batch_norm=True),
    "AdaScale": BASE.change(adascale=True),
    "clipping": BASE.change(clip=0.1),
    "recalibration": BASE.change(recalibrate="always"),
}


def compare(
    recipe: Recipe, precision: str, bound: float, task: Task | None = None, at_once: tuple[int, ...] = (GROUPED,)
) -> None:
    """20 steps on 4 real workers, and on 4 rehearsed ones, in groups of up to ``at_once`` examples."""
    recipe = recipe.change(workers=4, precision=precision)
    task = task or tiny_task(480)
    real = training(task, recipe)
    real_row = run(real).row
    for examples in at_once if current().is_main else ():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sync_batch_norm, "current", World)  # a rehearsal is alone; here the others stand beside it
            patch.setattr(module, "GROUP_EXAMPLES", examples)
            virtual = rehearsal(task, recipe)
            row = run(virtual).row
        assert virtual.state.step == real.state.step >= 20
        assert row is not None and real_row is not None
        if precision == "float64":
            assert row.test_correct == real_row.test_correct and row.train_accuracy == real_row.train_accuracy
        assert row.test_loss == pytest.approx(real_row.test_loss, rel=10 * bound)
        difference = float((parameters(virtual.model) - parameters(real.model)).abs().max())
        assert difference <= bound, f"{precision}, {examples} examples at once: {difference}"
        for name, buffer in real.model.named_buffers():
            other = virtual.model.get_buffer(name)
            assert torch.allclose(other.double(), buffer.double(), rtol=10 * bound, atol=10 * bound), name
        if isinstance(real.optimizer, AdaScale):
            assert virtual.state.clock == pytest.approx(real.state.clock, rel=1e-4)
    current().barrier()


@pytest.mark.parametrize("name", CASES)
@workers(4)
def test_four_rehearsed_workers_equal_four_real_ones(name: str) -> None:
    """One virtual worker at a time, and several of them together."""
    compare(CASES[name], "float64", 1e-12, at_once=(1, 64))
    compare(CASES[name], "float32", 1e-5, at_once=(64,))


class RandomDepth(nn.Module):
    """Drops whole examples with torch's own random numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (torch.rand(len(x), 1, dtype=x.dtype) > 0.3) if self.training else x


class NumPyNoise(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.from_numpy(np.random.standard_normal(x.shape)).to(x) if self.training else x


class Attention(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.view(len(x), 2, 8)
        dropout = 0.3 if self.training else 0.0
        return nn.functional.scaled_dot_product_attention(y, y, y, dropout_p=dropout).reshape(len(x), 16)


class TimeFirst(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.dropout(x.view(len(x), 2, 8).transpose(0, 1), 0.3, self.training)
        return y.transpose(0, 1).reshape(len(x), 16)


class Centred(nn.Module):
    """Mixes the examples of a batch while it trains."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0) if self.training else x


class Memory(nn.Module):
    """Notes a running mean in a buffer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(16))
        self.register_buffer("seen", torch.tensor(False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
            self.seen.fill_(True)
        return x - self.mean


class Noisy(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Examples that are drawn anew whenever they are read."""

    def __init__(self, num_examples: int, draw: bool) -> None:
        self._data, self._draw = clouds(num_examples, 1), draw

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        noise = torch.rand(8) + random.random() if self._draw else 0.0
        return (self._data.inputs[index] + noise).double(), self._data.targets[index]


def mixed_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    losses = nn.functional.cross_entropy(outputs, targets, reduction="none")
    return losses * (1 + outputs.detach().mean().abs())


def own_code(layer: Callable[[], nn.Module], **changes: Any) -> Task:
    def model() -> nn.Module:
        last = nn.Linear(16, 3)
        nn.init.zeros_(last.weight)  # hides whatever lies before it from the first loss
        return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), layer(), nn.Dropout(0.2), last)

    kind = {"name": "own", "model": model, "train": lambda: clouds(480, 1), "test": lambda: clouds(101, 2)}
    return Task(**{**kind, **changes})


OWN_CODE: dict[str, Callable[[], Task]] = {
    "random depth": lambda: own_code(RandomDepth),
    "NumPy's random numbers": lambda: own_code(NumPyNoise),
    "attention with dropout": lambda: own_code(Attention),
    "time first": lambda: own_code(TimeFirst),
    "mixed examples": lambda: own_code(Centred),
    "mixed losses": lambda: own_code(nn.Identity, loss=mixed_loss),
    "a buffer of its own": lambda: own_code(Memory),
    "spectral norm": lambda: own_code(lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(16, 16))),
    "instance norm": lambda: own_code(
        lambda: nn.Sequential(nn.Unflatten(1, (2, 8)), nn.InstanceNorm1d(2, track_running_stats=True), nn.Flatten())
    ),
    "dropout in place": lambda: own_code(lambda: nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.3, inplace=True))),
    "a data set that draws": lambda: own_code(nn.Identity, train=lambda: Noisy(480, draw=True)),
    "a data set that does not": lambda: own_code(nn.Identity, train=lambda: Noisy(480, draw=False)),
}


@pytest.mark.parametrize("name", OWN_CODE)
@workers(4)
def test_models_that_mix_or_draw_in_their_own_code(name: str) -> None:
    compare(BASE.change(model={}), "float64", 1e-12, OWN_CODE[name]())


def test_workers_go_together_where_they_may() -> None:
    """The comparison of the two ways finds no difference where there is none, whatever the precision."""
    for precision in ("float32", "float64", "bf16"):
        job = rehearsal(tiny_task(480), BASE.change(workers=4, precision=precision, epochs=1))
        run(job)
        assert not job.updater.remarks and job.updater._workers_at_once(12) == 4, precision


def test_adascale_with_synchronised_batch_norm_is_refused() -> None:
    with pytest.raises(RecipeError, match="cannot be rehearsed together"):
        rehearsal(tiny_task(), BASE.change(workers=4, adascale=True, sync_batch_norm=True))


def test_every_recalibration_batch_is_spread_over_a_sorted_set() -> None:
    batches = spread_batches(50_000, 512)
    assert len(batches) == 16 and {len(one) for one in batches} == {512}
    assert len({index for one in batches for index in one}) == 8192
    for one in batches:  # as many of each tenth of the data
        assert all(abs(sum(5000 * k <= i < 5000 * (k + 1) for i in one) - 51.2) <= 1.2 for k in range(10))
    assert [len(one) for one in spread_batches(5, 8)] == [8]


def test_rehearsed_lines_say_so(capfd: pytest.CaptureFixture[str]) -> None:
    rueda.fit(tiny_task(), BASE.change(workers=4, epochs=1), rehearse=True)
    assert "on 4 rehearsed workers in one process" in capfd.readouterr().err
    rueda.fit(tiny_task(), BASE.change(epochs=1))
    assert "rehearsed" not in capfd.readouterr().err


def test_many_virtual_workers_with_small_batches() -> None:
    recipe = Recipe(workers=64, batch=4, epochs=4, rate=0.05, model={"batch_norm": True, "dropout": 0.1})
    rows = run(rehearsal(tiny_task(1024), recipe))
    assert rows.row is not None and rows.row.global_batch == 256 and rows.row.step == 16 and rows.row.rehearsed


def test_dropout_of_a_convolutional_model_in_groups() -> None:
    """Feature dropout and images: taken together or one by one, the same parameters."""

    def model() -> nn.Module:
        return nn.Sequential(
            nn.Unflatten(1, (1, 2, 4)), nn.Conv2d(1, 4, 1), nn.BatchNorm2d(4), nn.Dropout2d(0.3), nn.Flatten(),
            nn.Dropout(0.3), nn.Linear(32, 3),
        )  # fmt: skip

    task = Task(name="images", model=model, train=lambda: clouds(240, 1), test=lambda: clouds(20, 2))
    recipe = Recipe(workers=5, batch=8, epochs=2, precision="float64")
    results = []
    for at_once in (1, 24, 1000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "GROUP_EXAMPLES", at_once)
            results.append(parameters(run(rehearsal(task, recipe)).model))
    assert torch.allclose(results[0], results[1], rtol=1e-12, atol=1e-14)
    assert torch.allclose(results[0], results[2], rtol=1e-12, atol=1e-14)


def test_one_rehearsed_worker_is_one_worker() -> None:
    recipe = BASE.change(precision="float64")
    one, rehearsed = run(training(tiny_task(), recipe)), run(rehearsal(tiny_task(), recipe))
    assert torch.equal(parameters(one.model), parameters(rehearsed.model))


def test_resume_and_record(tmp_path) -> None:  # type: ignore[no-untyped-def]
    recipe = BASE.change(workers=4)
    whole = rueda.fit(tiny_task(), recipe, rehearse=True, progress=False)
    rueda.fit(tiny_task(), recipe.change(epochs=1), rehearse=True, folder=tmp_path, progress=False)
    resumed = rueda.fit(tiny_task(), recipe, rehearse=True, folder=tmp_path, resume=True, progress=False)
    assert torch.equal(parameters(whole.model), parameters(resumed.model))
    run = rueda.Run(tmp_path)
    assert run.environment()["rehearsed"] is True and all(row.rehearsed for row in run.rows())
    assert run.recipe().workers == 4


@workers(2)
def test_a_rehearsal_is_one_process() -> None:
    with pytest.raises(RecipeError, match="a rehearsal runs in one process, but 2 workers are running"):
        rueda.fit(tiny_task(), BASE, rehearse=True, progress=False)
    assert World().size == 1
