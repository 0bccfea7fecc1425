"""`rueda.integrations.lightning` on the real Lightning: rates, ghosts, noise scale, growth, resuming, two workers."""

from __future__ import annotations

import csv
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from examples_here import run_example, run_example_on_two

lightning = pytest.importorskip("lightning", reason="lightning is not installed")

from rueda.errors import RecipeError  # noqa: E402
from rueda.integrations.lightning import LargeBatch  # noqa: E402
from rueda.nn import GhostBatchNorm1d  # noqa: E402
from rueda.optim import LARS  # noqa: E402
from rueda.optim.noise_scale import Estimator  # noqa: E402
from rueda.optim.rates import build_schedule  # noqa: E402
from rueda.records import Recipe  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Lightning's own
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:lightning"),
]
INPUTS = torch.randn(48, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


class Module(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self, rate: float = 0.01) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rate, self.rates = rate, []
        self.network = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1)).double()

    def loss(self, inputs: Tensor) -> Tensor:
        loss: Tensor = (self.network(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        return loss

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        return self.loss(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        groups = [{"params": [p for p in self.parameters() if p.ndim > 1]}]
        groups += [{"params": [p for p in self.parameters() if p.ndim <= 1], "lr": 2 * self.rate}]
        return LARS(groups, lr=self.rate)

    def on_train_batch_end(self, *_: Any) -> None:
        groups = self.optimizers().optimizer.param_groups
        self.rates.append(tuple(group["lr"] for group in groups))


def train(recipe: Recipe, module: Module, folder: Path, **options: Any) -> tuple[LargeBatch, Any]:
    callback = LargeBatch(recipe)
    loader = DataLoader(TensorDataset(INPUTS), batch_size=4)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    checkpoint = options.pop("ckpt_path", None)
    options = {"enable_checkpointing": False, **quiet, **options}
    trainer = lightning.Trainer(callbacks=[callback], default_root_dir=folder, **options)
    trainer.fit(module, loader, ckpt_path=checkpoint)
    return callback, trainer


def test_rates_follow_the_recipe_and_the_batch_grows(tmp_path: Path) -> None:
    recipe = Recipe(
        scaling="sqrt", base_batch=4, warmup_epochs=1, schedule="cosine", ghost_batch=2,
        growth_factor=3, milestones=(1, 2), largest_batch=24,
    )  # fmt: skip
    module = Module()
    callback, trainer = train(recipe, module, tmp_path, max_epochs=3, accumulate_grad_batches=2)
    assert trainer.global_step == 6 + 2 + 2  # 12 micro-batches an epoch: 2 to an update, then 6, which is the largest
    ghosts = [layer.ghost_batch for layer in module.modules() if isinstance(layer, GhostBatchNorm1d)]
    assert ghosts == [2]
    whole = recipe.change(batch=4, accumulate=2, epochs=3, rate=0.01)
    rates = build_schedule(whole, steps_per_epoch=6)
    first = [rates(step) for step in range(6) for _ in range(2)]
    then = [rates(step) for step in (6, 9, 12, 15) for _ in range(6)]  # an update of 6 counts as 3 of the first ones
    then[12:] = [rate / 3 for rate in then[12:]]  # from epoch 2 on it should be 72 examples and is 24
    assert [pair[0] for pair in module.rates] == pytest.approx(first + then, rel=1e-12)
    assert all(second == pytest.approx(2 * rate) for rate, second in module.rates)
    assert callback.clock == 18


def test_the_noise_scale_is_that_of_the_formula_and_changes_nothing(tmp_path: Path) -> None:
    module, plain = Module(), Module()
    recipe = Recipe(noise_scale_every=1, ghost_batch=4)
    train(recipe, module, tmp_path, max_epochs=1, accumulate_grad_batches=2)
    train(Recipe(ghost_batch=4), plain, tmp_path, max_epochs=1, accumulate_grad_batches=2)
    for mine, theirs in zip(module.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    still, estimator = Module(rate=1e-300), Estimator(200)  # weights that stay, so that gradients can be computed anew
    _, trainer = train(recipe, still, tmp_path, max_epochs=1, accumulate_grad_batches=2)
    still.train()
    for pair in INPUTS.split(8):
        found = []
        for part in pair.split(4):
            gradients = torch.autograd.grad(still.loss(part), list(still.parameters()))
            found.append(torch.cat([gradient.ravel() for gradient in gradients]))
        stacked = torch.stack(found)
        estimator.observe(float(stacked.square().sum()), float(stacked.mean(0).square().sum()), 2, 4)
    expected = estimator.estimate(step=6)
    logged = trainer.callback_metrics
    assert float(logged["noise_scale"]) == pytest.approx(expected.value, rel=1e-5)  # Lightning logs float32
    assert float(logged["noise_scale_low"]) == pytest.approx(expected.low, rel=1e-5)


def test_a_resumed_training_continues(tmp_path: Path) -> None:
    recipe = Recipe(scaling="linear", base_batch=4, schedule="cosine", warmup_epochs=1, noise_scale_every=1)
    options = {"accumulate_grad_batches": 2}
    whole, _ = train(recipe, Module(), tmp_path, max_epochs=4, **options)
    begun = Module()
    stop = {"max_epochs": 4, "limit_train_batches": 12, "enable_checkpointing": True}

    class Stop(lightning.Callback):  # type: ignore[misc]
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            trainer.should_stop = trainer.current_epoch == 1

    callback = LargeBatch(recipe)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    trainer = lightning.Trainer(callbacks=[callback, Stop()], default_root_dir=tmp_path, **quiet, **stop, **options)
    trainer.fit(begun, DataLoader(TensorDataset(INPUTS), batch_size=4))
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    resumed = Module()
    again, _ = train(recipe, resumed, tmp_path, max_epochs=4, ckpt_path=tmp_path / "half.ckpt", **options)
    assert again.state_dict() == whole.state_dict()


MISTAKES = {
    "one part": (Recipe(noise_scale_every=1), {}, "two workers or micro-batches"),
    "no end": (Recipe(schedule="cosine"), {"max_epochs": -1, "max_steps": -1}, "max_epochs or max_steps"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str, tmp_path: Path) -> None:
    recipe, options, expected = MISTAKES[name]
    with pytest.raises(RecipeError, match=expected):
        train(recipe, Module(), tmp_path, **{"max_epochs": 1, **options})


def test_fields_that_are_not_followed() -> None:
    with pytest.raises(RecipeError, match=r"sync_batch_norm.*sync_batchnorm=True"):
        LargeBatch(Recipe(sync_batch_norm=True))


def test_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_example("with_lightning.py", tmp_path, monkeypatch)
    assert "40 updates" in capsys.readouterr().out
    logs = list(tmp_path.rglob("metrics.csv"))
    with open(logs[0]) as stream:
        assert any(row.get("noise_scale") for row in csv.DictReader(stream))


def test_the_example_on_two_workers(tmp_path: Path) -> None:
    assert "20 updates {'noise_scale':" in run_example_on_two("with_lightning.py", tmp_path)
