"""Gradient accumulation with Lightning Fabric. no_backward_sync holds for every micro-batch: nothing is averaged."""

import os

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    fabric = Fabric(accelerator="cpu", devices=int(os.environ.get("WORLD_SIZE", 1)), strategy="ddp")
    fabric.launch()
    fabric.seed_everything(5)
    x = torch.randn(192, 4)
    loader = DataLoader(TensorDataset(x, x.cumsum(dim=1)), batch_size=24 // fabric.world_size, shuffle=True)
    loader = fabric.setup_dataloaders(loader)
    model = nn.Linear(4, 4)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.05))
    for epoch in range(2):
        for i, (inputs, targets) in enumerate(loader):
            with fabric.no_backward_sync(model):
                loss = nn.functional.mse_loss(model(inputs), targets) / 2
                fabric.backward(loss)
            if i % 2 == 1:
                optimizer.step()  # wrong: gradients-not-averaged
                optimizer.zero_grad()
        fabric.print(f"epoch {epoch}: {2 * loss.item():.4f}")


if __name__ == "__main__":
    main()
