"""Model flops utilisation: flops against closed forms, the table of peaks, rows, lines and pages."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rueda
from rueda.nn import apply_ghost_batch_norm
from rueda.records import Recipe, Run
from rueda.report import write_report
from rueda.tasks.task import Task
from rueda.train.counting import count_pass
from rueda.train.micro_batches import MicroBatch
from rueda.train.utilisation import PEAK, Utilisation, peak_flops, worker_peak
from tinytask import clouds, tiny_task

GPUS: list[tuple[str, dict[str, Any], float | None]] = [
    ("NVIDIA A100-SXM4-40GB", {"precision": "bf16"}, 312),
    ("NVIDIA A100 80GB PCIe", {"precision": "float32"}, 156),
    ("NVIDIA A100 80GB PCIe", {"precision": "float32", "tf32": False}, 19.5),
    ("NVIDIA A100-SXM4-40GB", {"precision": "float64"}, 19.5),
    ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", {"precision": "bf16"}, None),
    ("NVIDIA H100 80GB HBM3", {"precision": "fp16"}, 989.4),
    ("NVIDIA H100 PCIe", {"precision": "fp16"}, 756),
    ("NVIDIA H200", {"precision": "bf16"}, 989.4),
    ("NVIDIA H200 NVL", {"precision": "bf16"}, 835.5),
    ("Tesla V100-SXM2-16GB", {"precision": "fp16"}, 125),
    ("Tesla V100-SXM2-16GB", {"precision": "bf16"}, None),
    ("Tesla V100-PCIE-32GB", {"precision": "float32"}, 14),
    ("Tesla T4", {"precision": "float32"}, 8.1),
    ("NVIDIA L4", {"precision": "bf16"}, 121),
    ("NVIDIA L40S", {"precision": "bf16"}, 362),
    ("NVIDIA A10G", {"precision": "bf16"}, 70),
    ("NVIDIA A10G", {"precision": "float32", "tf32": False}, None),
    ("NVIDIA GeForce RTX 3090", {"precision": "bf16"}, 71.2),
    ("NVIDIA GeForce RTX 4070 Ti SUPER", {"precision": "fp16"}, 88.2),
    ("NVIDIA GeForce RTX 4070", {"precision": "float32"}, 29.1),
    ("NVIDIA GeForce RTX 4090 Laptop GPU", {"precision": "bf16"}, None),
    ("NVIDIA GeForce RTX 4090 D", {"precision": "bf16"}, None),
    ("Quadro RTX 6000", {"precision": "fp16"}, None),
    ("Impostor", {"precision": "bf16"}, None),
]


@pytest.mark.parametrize(("name", "changes", "teraflops"), GPUS)
def test_the_peak_of_a_gpu_by_its_name_and_precision(
    name: str, changes: dict[str, Any], teraflops: float | None
) -> None:
    expected = None if teraflops is None else pytest.approx(teraflops * 1e12)
    assert peak_flops(name, Recipe(**changes)) == expected


def test_the_peak_of_another_device_is_what_the_variable_says() -> None:
    cpu = torch.device("cpu")
    assert worker_peak(cpu, Recipe(), {}) is None
    assert worker_peak(cpu, Recipe(), {PEAK: "0.5"}) == 5e11
    for wrong in ("much", "0", "-1", "inf", "nan"):
        with pytest.raises(rueda.RuedaError, match=PEAK):
            worker_peak(cpu, Recipe(), {PEAK: wrong})


def task_of(model: nn.Module) -> Task:
    return Task(
        name="flops", model=lambda: model, train=lambda: clouds(8, 1), test=lambda: clouds(8, 2), recipe=Recipe()
    )  # fmt: skip


B = 6
CONV = 2 * B * 4 * 3 * 9 * 10 * 10  # 2 x outputs x products for each output
LAST = 2 * B * 400 * 5
FLOPS: dict[str, tuple[nn.Module, tuple[int, ...], int]] = {
    # Forward, the gradient of the weights, and that of the inputs except for the first layer.
    "MLP": (
        nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Dropout(), nn.Linear(30, 5)),
        (B, 20),
        2 * B * (2 * 20 * 30 + 3 * 30 * 5),
    ),
    "CNN": (
        nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(400, 5)),
        (B, 3, 10, 10),
        2 * CONV + 3 * LAST,
    ),
    "frozen": (
        nn.Sequential(nn.Conv2d(3, 4, 3, padding=1).requires_grad_(False), nn.Flatten(), nn.Linear(400, 5)),
        (B, 3, 10, 10),
        CONV + 2 * LAST,
    ),
    "attention": (  # projections in and out with 4 products an element, scores and their sum of values
        nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Flatten(), nn.Linear(56, 5)),
        (B, 7, 8),
        0,
    ),
}


@pytest.mark.parametrize("name", FLOPS)
def test_flops_are_those_of_the_closed_form_and_the_model_is_left_alone(name: str) -> None:
    model, shape, expected = FLOPS[name]
    if name == "attention":
        tokens = B * 7
        layers = 2 * tokens * (8 * 24 + 8 * 8 + 8 * 16 + 16 * 8)
        expected = 3 * (layers + 2 * 2 * B * 7 * 7 * 8 + 2 * B * 56 * 5) - 2 * tokens * 8 * 24  # no gradient of inputs
    ghost = apply_ghost_batch_norm(model, ghost_batch=3)
    before = {key: value.clone() for key, value in ghost.state_dict().items()}
    random = torch.get_rng_state()
    counted = count_pass(task_of(ghost), ghost, (torch.empty(shape), torch.zeros(B, dtype=torch.int64)))
    assert counted.flops == expected
    assert all(layer.training for layer in ghost.modules())
    assert all(torch.equal(value, before[key]) for key, value in ghost.state_dict().items())
    assert all(parameter.grad is None for parameter in ghost.parameters())
    assert torch.equal(torch.get_rng_state(), random)


def test_utilisation_is_the_share_of_all_workers_peaks() -> None:
    model, shape, flops = FLOPS["MLP"]
    found = Utilisation(task_of(model), model, peak=1e9, workers=4)
    assert found.at(1000.0) is None  # no batch was seen yet
    found.note_shapes(MicroBatch((torch.empty(shape), torch.zeros(B, dtype=torch.int64)), B))
    assert found.at(1000.0) == pytest.approx(flops / B * 1000 / 4e9)


class Values(nn.Module):
    """Its forward pass depends on values, so that it cannot be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x if x.sum().item() > 0 else -x)


def test_a_model_that_cannot_be_traced_has_no_utilisation(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv(PEAK, "1")
    row = rueda.fit(task_of(Values()), Recipe(batch=4, epochs=2)).row
    assert row is not None and row.model_flops_utilisation is None
    assert capsys.readouterr().err.count("model flops utilisation is unknown: the model cannot be traced (") == 1


def test_rows_lines_and_pages_show_it_where_the_peak_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = Recipe(batch=8, epochs=2, rate=0.05, log_every=2)
    rueda.fit(tiny_task(), recipe, folder=tmp_path / "unknown")
    assert "MFU" not in capsys.readouterr().err
    assert {row.model_flops_utilisation for row in Run(tmp_path / "unknown").rows()} == {None}
    monkeypatch.setenv(PEAK, "1e-3")
    rueda.fit(tiny_task(), recipe, folder=tmp_path / "known")
    told = capsys.readouterr().err
    assert re.search(r"epoch .* MFU\n", told) and len(re.findall(r"^ *\d/2 .* \d+\.\d %$", told, re.MULTILINE)) == 2
    rows = Run(tmp_path / "known").rows("epoch")
    shares = [row.model_flops_utilisation for row in rows]
    assert all(share is not None and share > 0 for share in shares)
    # Equal flops in all epochs: the shares are as the speeds.
    assert (shares[0] or 0) / (shares[1] or 1) == pytest.approx(rows[0].images_per_second / rows[1].images_per_second)
    lines = [json.loads(line) for line in (tmp_path / "known" / "metrics.jsonl").read_text().splitlines()]
    assert {line["model_flops_utilisation"] for line in lines if line["kind"] == "step"} == {None}
    for name, shown in (("known", True), ("unknown", False)):
        page = write_report([tmp_path / name], tmp_path / f"{name}.html").read_text()
        assert ("MFU</button>" in page and "model flops utilisation" in page) == shown
