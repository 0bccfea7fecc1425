"""Serial scripts as people write them, on 2 and 3 workers: each ends with the parameters of its serial run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from harness import workers
from scalehere import flat, scaled, serial

pytestmark = pytest.mark.slow

EXACT = [
    "accumulation", "arguments", "balanced", "by_hand", "cnn_augmentation", "compiled", "ema", "gan", "grad_scaler",
    "lstm", "mlp", "processes", "progress", "stream", "tokens", "trainer_class", "transformer", "vae",
]  # fmt: skip


def check(name: str, folder: str) -> None:
    scaling = scaled(name, folder)
    assert scaling.tracker.num_shared_backward > scaling.tracker.num_backward // 2
    assert scaling.steps.num_shared_steps > 3 or name in ("by_hand", "accumulation")
    assert not any("draws random numbers" in note for note in scaling.notes.said)


@workers(2)
def on_2(name: str, folder: str) -> None:
    check(name, folder)


@workers(3)
def on_3(name: str, folder: str) -> None:
    check(name, folder)


@pytest.mark.parametrize("name", EXACT)
def test_the_parameters_are_those_of_the_serial_script(name: str, tmp_path: Path) -> None:
    expected = serial(name, tmp_path / "serial")
    for size, run in ((2, on_2), (3, on_3)):
        folder = tmp_path / str(size)
        folder.mkdir()
        run(name=name, folder=str(folder))
        found = flat(torch.load(folder / "model.pt"))
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            difference = float((found[key].double() - value.double()).abs().max() / value.double().abs().max().clamp(1))
            assert difference < 1e-6, f"{name} on {size} workers: {key} differs by {difference:.2g}"


@workers(2)
def synchronised_on_2(folder: str) -> None:
    scaled("batch_norm", folder, batch_norm="synchronised")


@workers(2)
def by_worker_on_2(folder: str) -> None:
    scaling = scaled("batch_norm", folder)
    assert any("statistics of each worker's share" in note for note in scaling.notes.said)


def test_batch_norm_is_synchronised_or_of_each_worker(tmp_path: Path) -> None:
    expected = serial("batch_norm", tmp_path / "serial")
    found = {}
    for name, run in (("synchronised", synchronised_on_2), ("worker", by_worker_on_2)):
        (tmp_path / name).mkdir()
        run(folder=str(tmp_path / name))
        found[name] = flat(torch.load(tmp_path / name / "model.pt"))
    for key, value in expected.items():
        torch.testing.assert_close(found["synchronised"][key], value, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(found["worker"]["0.weight"], expected["0.weight"], atol=1e-5)
    assert torch.allclose(found["worker"]["1.running_mean"], expected["1.running_mean"], atol=0.02)


@workers(3)
def with_draws_of_their_own(folder: str) -> None:
    from rueda.check.scale.generator import GeneratorWatch
    from rueda.world import current

    scaling = scaled("lstm_dropout", folder)
    assert any("cannot be shared out" in note for note in scaling.notes.said)
    assert len(set(current().all_gather_object(GeneratorWatch.checksum()))) == 1  # after the last batch


def test_dropout_within_an_operation_is_said_and_workers_stay_in_step(tmp_path: Path) -> None:
    expected = serial("lstm_dropout", tmp_path / "serial")
    with_draws_of_their_own(folder=str(tmp_path))
    found = flat(torch.load(tmp_path / "model.pt"))
    assert all(torch.allclose(found[key], value, atol=0.2) for key, value in expected.items())


@workers(2)
def loading_shares(folder: str) -> None:
    scaling = scaled("cnn_augmentation", folder, load="share")
    assert scaling.tracker.num_shared_backward == 11


@workers(2)
def summed(folder: str) -> None:
    scaled("summed", folder, loss="sum")


def test_a_share_with_draws_of_its_own_is_the_same_training_in_kind(tmp_path: Path) -> None:
    expected = serial("cnn_augmentation", tmp_path / "serial")
    loading_shares(folder=str(tmp_path))
    found = flat(torch.load(tmp_path / "model.pt"))
    assert all(torch.allclose(found[key], value, atol=0.2) for key, value in expected.items())


def test_a_loss_that_is_a_sum(tmp_path: Path) -> None:
    expected = serial("summed", tmp_path / "serial")
    summed(folder=str(tmp_path))
    found = flat(torch.load(tmp_path / "model.pt"))
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, atol=1e-6, rtol=1e-6)


@workers(2)
def weakly(folder: str) -> None:
    scaled("weak", folder, weak=True, scaling="linear", warmup_epochs=1.0, verify=0)


def test_weak_scaling_is_the_script_with_larger_batches_and_rates(tmp_path: Path) -> None:
    """The first batch is not shared; then two at a time, with a rate that rises to twice the script's in one epoch."""
    weakly(folder=str(tmp_path))
    found = torch.load(tmp_path / "model.pt")
    assert found["steps"].tolist() == [20, 2]

    torch.manual_seed(0)
    x = torch.randn(40, 3)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.02, total_steps=21)
    epochs = 0.0
    for batches in ([0], [1, 2], [3, 4], [5, 6], [7, 8], [9], *([i, i + 1] for i in range(0, 10, 2))):
        rows = x[[4 * batch + row for batch in batches for row in range(4)]]
        epochs += len(batches) / 10
        optimizer.zero_grad()
        (model(rows) - rows.sum(1, keepdim=True)).square().mean().backward()
        own = optimizer.param_groups[0]["lr"]
        optimizer.param_groups[0]["lr"] = own * (1 if batches == [0] else 1 + min(1.0, epochs))
        optimizer.step()
        optimizer.param_groups[0]["lr"] = own
        for _ in batches:
            schedule.step()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(found[name], value, atol=1e-6, rtol=1e-6)


REASONS = {
    "Ranked": "its rows are not independent of each other", "Keeping": "it keeps something of its forward pass",
    "Sampled": "it draws random numbers", "Total": "not all outputs have the batch as their first dimension",
}  # fmt: skip


def share_evaluations(folder: str) -> None:
    scaling = scaled("evaluations", folder, batch_norm="synchronised", share_evaluation=True)
    notes = [note for note in scaling.notes.said if "is not shared out" in note]
    expected = [f"the evaluation of {name} is not shared out: {reason}" for name, reason in REASONS.items()]
    assert notes == expected
    assert scaling.evaluation.num_shared > 30, "of 48: the others are compared at calls 1, 2, 4, 8 ..., or too small"


@workers(2)
def evaluations_on_2(folder: str) -> None:
    share_evaluations(folder)


@workers(3)
def evaluations_on_3(folder: str) -> None:
    share_evaluations(folder)


def test_shared_evaluations_give_the_numbers_of_the_serial_script(tmp_path: Path) -> None:
    expected = serial("evaluations", tmp_path / "serial")
    for size, run in ((2, evaluations_on_2), (3, evaluations_on_3)):
        folder = tmp_path / str(size)
        folder.mkdir()
        run(folder=str(folder))
        found = flat(torch.load(folder / "model.pt"))
        for key, value in expected.items():
            torch.testing.assert_close(found[key], value, atol=2e-5, rtol=1e-5, msg=f"{key} on {size} workers")
