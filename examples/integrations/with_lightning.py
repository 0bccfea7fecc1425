"""Lightning: rates, ghost batch norm, the noise scale and a growing batch from one callback, LAMB as the optimizer."""

import os

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from rueda import Recipe
from rueda.integrations.lightning import LargeBatch
from rueda.optim import LAMB, parameter_groups
from rueda.tasks.datasets import glyphs


class Classifier(lightning.LightningModule):
    """A small network on images of 28 x 28 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        """Return the loss of a micro-batch."""
        inputs, targets = batch
        loss = nn.functional.cross_entropy(self.network(inputs), targets)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return an optimizer of Rueda's; its lr is that of the base batch."""
        return LAMB(parameter_groups(self, weight_decay=0.01), lr=0.005)


recipe = Recipe(
    scaling="sqrt", base_batch=32, warmup_epochs=1, schedule="cosine",  # rates, by update
    ghost_batch=16,
    noise_scale_every=2,
    growth_factor=2, milestones=(2,), largest_batch=256,  # twice the batch from epoch 2 on, by gradient accumulation
)  # fmt: skip

lightning.seed_everything(0)
data = glyphs("train", num_examples=1024)
loader = DataLoader(TensorDataset(data.inputs / 255, data.targets), batch_size=32, shuffle=True, drop_last=True)
trainer = lightning.Trainer(
    max_epochs=3, accumulate_grad_batches=2, callbacks=[LargeBatch(recipe)], accelerator="cpu",
    devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)), log_every_n_steps=4,
    logger=lightning.pytorch.loggers.CSVLogger("."), enable_progress_bar=False, enable_model_summary=False,
)  # fmt: skip
trainer.fit(Classifier(), loader)
if trainer.is_global_zero:
    figures = {name: round(float(value), 3) for name, value in sorted(trainer.callback_metrics.items())}
    print(f"{trainer.global_step} updates", figures)
