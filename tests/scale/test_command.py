"""``rueda scale`` itself: started, verified, refused, or left alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from commandline import catch_launches, environ, rueda
from forked import forked
from harness import QUICK_START
from rueda import check
from rueda.check.scale.options import ScaleOptions
from rueda.check.scale.verification import judge
from scalehere import SCRIPTS

SOURCE = str(Path(check.__file__).parents[2])
WEIGHTED = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x, y = torch.randn(32, 4), torch.randint(0, 3, (32,))
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 0.2]))
for a, b in DataLoader(TensorDataset(x, y), 8):
    optimizer.zero_grad()
    criterion(model(a), b).backward()
    optimizer.step()
torch.save(model, "model.pt")
"""


def command(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-m", "rueda", "scale", *words],
        cwd=folder,
        env=environ(PYTHONPATH=os.pathsep.join([SOURCE, QUICK_START])),
        capture_output=True,
        text=True,
    )


def test_a_script_prints_what_it_prints_alone(tmp_path: Path) -> None:
    script = str(SCRIPTS / "mlp.py")
    plain = "import os, runpy, sys\nos.chdir(sys.argv[1])\nrunpy.run_path(sys.argv[2], run_name='__main__')"
    with forked(plain, [environ()], str(tmp_path), script) as (alone,):
        status, printed, err = alone.wait()
    assert status == 0, err
    done = command("-np", "2", script, folder=tmp_path / "two")
    assert done.returncode == 0, done.stderr
    assert done.stdout == printed
    assert "rueda scale: verified: the gradient is that of the script on one worker" in done.stderr
    assert "14 of 15 backward passes were shared among 2 workers" in done.stderr
    assert "held back: model.pt" in done.stderr
    expected, found = torch.load(tmp_path / "model.pt"), torch.load(tmp_path / "two" / "model.pt")
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=1e-6, rtol=1e-6)


def test_a_script_without_a_seed_has_one_on_all_workers(tmp_path: Path) -> None:
    """torch's generator starts elsewhere in every process: the workers drew different batches and were refused."""
    unseeded = WEIGHTED.replace("torch.manual_seed(0)\n", "").replace("weight=torch.tensor([1.0, 5.0, 0.2])", "")
    (tmp_path / "train.py").write_text(unseeded.replace("y), 8)", "y), 8, shuffle=True)"))
    done = command("-np", "2", "train.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "rueda scale: verified: the gradient is that of the script on one worker" in done.stderr


def test_a_ratio_of_sums_is_refused_by_the_comparison(tmp_path: Path) -> None:
    """The gradient of a Dice loss differs by 1e-5 to 1e-4 at the start, where all outputs are alike."""
    ratio = "p = model(a).sigmoid(); loss = 1 - 2 * (p[:, 0] * b).sum() / (p.sum() + b.sum())\n    loss.backward()"
    (tmp_path / "train.py").write_text(WEIGHTED.replace("criterion(model(a), b).backward()", ratio))
    done = command("-np", "2", "train.py", folder=tmp_path)
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if "which they share" not in line]  # said with one core
    assert line.startswith("rueda: the first shared gradient that was compared differs from the serial script's")
    assert not (tmp_path / "model.pt").exists()


PARALLEL = {
    "from torch.nn.parallel import DistributedDataParallel": "DistributedDataParallel",
    "import lightning as L": "Lightning",
    "import pytorch_lightning": "Lightning",
    "from transformers import Trainer, TrainingArguments": "Hugging Face's Trainer",
    "import horovod.torch as hvd": "Horovod",
    "from accelerate import Accelerator": "Accelerate",
    "import torch\ntorch.distributed.init_process_group()": "torch.distributed",
}


@pytest.mark.parametrize("code", PARALLEL)
def test_a_parallel_script_is_left_alone(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(code)
    launches = catch_launches(monkeypatch, 0)
    assert rueda("scale", "-np", "2", "train.py", "--lr", "1") == 0
    plan, said = launches[0][0], capsys.readouterr().err
    if PARALLEL[code] == "Lightning":  # which would train N times, each time all of it
        assert plan.program == ("rueda.check.scale.lightning_script", "train.py", "--lr", "1") and plan.module
        assert "strategy='ddp'" in said and "global batch is 2 times as large" in said
    else:
        assert plan.program == ("train.py", "--lr", "1") and not plan.module
    assert f"it uses {PARALLEL[code]}" in said


def test_a_serial_script_is_started_through_the_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import torch")
    launches = catch_launches(monkeypatch, 3)
    assert rueda("scale", "-np", "2", "--loss", "sum", "train.py", "-np", "9") == 3
    plan, output = launches[0]
    assert plan.module and plan.program == ("rueda.check.scale", "train.py", "-np", "9")
    assert '"loss": "sum"' in plan.environment["RUEDA_SCALE"] and plan.environment["PYTHONHASHSEED"] == "0"
    assert output.quiet_ranks


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-np", "2", "nowhere.py"], "the script nowhere.py does not exist"),
        (["-np", "2", "ls"], "expected a Python script such as train.py, got 'ls'"),
        (["-np", "2", "--loss", "max", "wrong.py"], "--loss: expected mean or sum, got 'max'"),
        (["-np", "2", "--recipe", "r.toml", "wrong.py"], "--recipe has an effect only with --weak"),
        (["-np", "2", "wrong.py"], "wrong.py:1: expected Python, got"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("wrong.py").write_text("def (")
    assert rueda("scale", *words) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_weak_takes_the_rule_of_a_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import torch")
    Path("r.toml").write_text('scaling = "sqrt"\nwarmup_epochs = 2\nepochs = 9\n')
    launches = catch_launches(monkeypatch, 0)
    assert rueda("scale", "-np", "2", "--weak", "--recipe", "r.toml", "train.py") == 0
    options = ScaleOptions.of(launches[0][0].environment)
    assert (options.weak, options.scaling, options.warmup_epochs, options.verify) == (True, "sqrt", 2.0, 0)


GRADIENT = torch.randn(100, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
NOISE = torch.randn(100, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
JUDGED = {
    "equal": (GRADIENT * (1 + 1e-6), "mean", "", "verified: "),
    "a sum": (GRADIENT / 2, "mean", "", "its loss is a sum over the batch; give --loss sum"),
    "a mean": (GRADIENT * 2, "sum", "", "its loss is a mean over the batch; give --loss mean"),
    "a little": (GRADIENT + 3e-5 * NOISE, "mean", "", "differs from the serial script's (relative difference 2.8e-05"),
    "another": (GRADIENT + 0.01 * NOISE, "mean", "", "differs from the serial script's (relative difference 0.0"),
    "dropout": (GRADIENT + 0.2 * NOISE, "mean", "random", "verified in size only"),
    "dropout of a sum": (GRADIENT / 2 + 0.05 * NOISE, "mean", "random", "give --loss sum"),
}


@pytest.mark.parametrize("case", JUDGED)
def test_the_comparison_of_gradients(case: str) -> None:
    ours, loss, inexact, said = JUDGED[case]
    verdict = judge(ours, GRADIENT, 2, loss, inexact)
    assert said in verdict.words + verdict.refusal
    assert bool(verdict.refusal) == (not said.startswith("verified"))


def test_a_gradient_of_zero_is_not_verified() -> None:
    assert judge(GRADIENT, GRADIENT * 0, 2, "mean", "").words.startswith("not verified")
