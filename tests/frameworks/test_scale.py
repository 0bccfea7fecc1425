"""`rueda scale` with a script of Lightning and one of Hugging Face's Trainer: the workers train together."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from commandline import environ
from rueda import check

SOURCE = str(Path(check.__file__).parents[2])
LIGHTNING = """
import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset

class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        return (self.layer(batch[0]) - batch[0].sum(1, keepdim=True)).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

L.seed_everything(0)
module = Module()
trainer = L.Trainer(
    max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False
)
trainer.fit(module, DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=8))
print("ended", trainer.world_size, trainer.global_step, module.layer.weight.sum().item(), flush=True)
"""
TRAINER = """
import torch
from transformers import Trainer, TrainingArguments

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, x, labels=None):
        return {"loss": (self.layer(x) - labels).square().mean()}

torch.manual_seed(0)
data = [{"x": x, "labels": x.sum(0, keepdim=True)} for x in torch.randn(64, 4)]
model = Model()
arguments = TrainingArguments(
    output_dir="out", num_train_epochs=1, per_device_train_batch_size=8, report_to=[], save_strategy="no", use_cpu=True,
    disable_tqdm=True, logging_strategy="no", ddp_find_unused_parameters=False,
)
trainer = Trainer(model=model, args=arguments, train_dataset=data)
trainer.train()
print("ended", arguments.world_size, trainer.state.global_step, model.layer.weight.sum().item(), flush=True)
"""


@pytest.mark.parametrize(("library", "script"), [("lightning", LIGHTNING), ("transformers", TRAINER)])
def test_the_workers_train_together(library: str, script: str, tmp_path: Path) -> None:
    """With ``devices=1`` Lightning trained twice, side by side, each time on all data."""
    pytest.importorskip(library, reason=f"{library} is not installed")
    (tmp_path / "train.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "-m", "rueda", "scale", "-np", "2", "train.py"],
        cwd=tmp_path,
        env=environ(PYTHONPATH=SOURCE),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "the global batch is 2 times as large" in done.stderr
    ended = [line.split("ended ")[1].split() for line in done.stdout.splitlines() if "ended " in line]
    assert len(ended) == 2 and ended[0] == ended[1], "one model on both workers"
    assert ended[0][:2] == ["2", "4"], "2 workers, and half of the 8 batches each"
