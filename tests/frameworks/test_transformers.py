"""`rueda.integrations.transformers` on the real Trainer of Hugging Face, and the example of Accelerate."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from examples_here import run_example, run_example_on_two

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")

from rueda.errors import RecipeError  # noqa: E402
from rueda.integrations.transformers import NoiseScaleCallback  # noqa: E402
from rueda.optim import LAMB  # noqa: E402
from rueda.optim.adapters import torch_scheduler  # noqa: E402
from rueda.optim.noise_scale import Estimator  # noqa: E402
from rueda.optim.schedules import GradualWarmup  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # theirs
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


@pytest.fixture(autouse=True)
def no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide marimo: transformers takes a process in which tests of labs have loaded it for a notebook with IPython."""
    monkeypatch.delitem(sys.modules, "marimo", raising=False)


INPUTS = torch.randn(48, 5, generator=torch.Generator().manual_seed(1))
DATA = [{"inputs": row, "labels": row.sum()} for row in INPUTS]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": (self.network(inputs)[:, 0] - labels).square().mean()}


def train(model: nn.Module, folder: Path, *callbacks: Any, rate: float = 0.05, resume: Any = None, **more: Any) -> Any:
    options = {
        "per_device_train_batch_size": 4, "gradient_accumulation_steps": 3, "max_steps": 8, "logging_steps": 4,
        "report_to": "none", "use_cpu": True, "disable_tqdm": True, "save_strategy": "no", "seed": 5,
    }  # fmt: skip
    arguments = transformers.TrainingArguments(output_dir=str(folder), **{**options, **more})
    optimizer = LAMB(model.parameters(), lr=rate)
    schedule = torch_scheduler(optimizer, GradualWarmup(rate / 4, rate, 4))
    trainer = transformers.Trainer(
        model, arguments, train_dataset=DATA, optimizers=(optimizer, schedule), callbacks=list(callbacks)
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


class Seen(transformers.TrainerCallback):  # type: ignore[misc]
    """Collects the gradients' parts from the weights, which stay, and the batches that the model sees."""

    def __init__(self, model: Model) -> None:
        self.batches: list[Tensor] = []
        model.register_forward_pre_hook(lambda _, __, given: self.batches.append(given["inputs"]), with_kwargs=True)


def test_the_noise_scale_is_that_of_the_formula(tmp_path: Path) -> None:
    model, callback, estimator = Model(), NoiseScaleCallback(), Estimator(200)
    seen = Seen(model)
    trainer = train(model, tmp_path, callback, rate=1e-30, max_grad_norm=1e-3)  # clipping comes before callbacks
    assert len(seen.batches) == 24
    for start in range(0, 24, 3):
        found = []
        for part in seen.batches[start : start + 3]:
            loss = model(inputs=part, labels=part.sum(1))["loss"]
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            found.append(torch.cat([gradient.ravel() for gradient in gradients]).double())
        stacked = torch.stack(found)
        estimator.observe(float(stacked.square().sum()), float(stacked.mean(0).square().sum()), 3, 4)
    expected = estimator.estimate(step=8)
    assert callback.meter is not None and callback.meter.current is not None
    assert callback.meter.current.value == pytest.approx(expected.value, rel=1e-4)
    rows = [row for row in trainer.state.log_history if "loss" in row]
    assert [row["step"] for row in rows] == [4, 8]
    assert rows[-1]["noise_scale"] == callback.meter.current.value


def test_measuring_changes_nothing_and_rates_follow_the_schedule(tmp_path: Path) -> None:
    measured, plain = Model(), Model()
    trainer = train(measured, tmp_path, NoiseScaleCallback(every=2))
    train(plain, tmp_path)
    for mine, theirs in zip(measured.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    rows = [row for row in trainer.state.log_history if "loss" in row]
    assert rows[0]["learning_rate"] == pytest.approx(GradualWarmup(0.0125, 0.05, 4)(3))  # that of the last update
    assert not measured._forward_pre_hooks


def test_a_tracker_before_the_callback_is_reached_from_the_front(tmp_path: Path) -> None:
    logged: list[dict[str, float]] = []

    class Tracker(transformers.TrainerCallback):  # type: ignore[misc]
        def on_log(self, *_: Any, **kwargs: Any) -> None:
            logged.append(dict(kwargs["logs"]))

    train(Model(), tmp_path, NoiseScaleCallback(), Tracker())
    assert "noise_scale" in logged[0]


def test_a_resumed_training_continues_the_averages(tmp_path: Path) -> None:
    options = {"save_strategy": "steps", "save_steps": 4, "restore_callback_states_from_checkpoint": True}
    first = NoiseScaleCallback()
    train(Model(), tmp_path, first, **options)
    saved = json.loads((tmp_path / "checkpoint-4" / "trainer_state.json").read_text())
    state = saved["stateful_callbacks"]["NoiseScaleCallback"]
    assert state["attributes"]["averages"]["num_steps"] == 4
    again = train(Model(), tmp_path, NoiseScaleCallback(), resume=str(tmp_path / "checkpoint-4"), **options)
    restored = next(each for each in again.callback_handler.callbacks if isinstance(each, NoiseScaleCallback))
    assert restored.meter is not None and first.meter is not None
    assert restored.state() == first.state()


def test_one_part_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="set gradient_accumulation_steps=2"):
        train(Model(), tmp_path, NoiseScaleCallback(), gradient_accumulation_steps=1)


@pytest.mark.parametrize(
    ("name", "told"), [("with_transformers.py", "'step': 12.0"), ("with_accelerate.py", "32 updates, loss")]
)
def test_the_examples(
    name: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_example(name, tmp_path, monkeypatch)
    assert told in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "told"), [("with_transformers.py", "'noise_scale_low': "), ("with_accelerate.py", "source='workers'")]
)
def test_the_examples_on_two_workers(name: str, told: str, tmp_path: Path) -> None:
    assert told in run_example_on_two(name, tmp_path)
