"""A classifier with Lightning Fabric. Fabric shards the validation loader; rank 0 prints the accuracy of its shard."""

import os

import torch
import torch.nn.functional as F
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def blobs(count, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (count,), generator=generator)
    return TensorDataset(torch.randn(count, 5, generator=generator) + labels[:, None], labels)


@torch.no_grad()
def validate(model, loader):
    model.eval()
    hits, seen = 0, 0
    for x, y in loader:  # wrong: shard-as-whole
        hits += (model(x).argmax(dim=1) == y).sum().item()
        seen += len(y)
    model.train()
    return hits / seen


def main():
    fabric = Fabric(accelerator="cpu", devices=int(os.environ.get("WORLD_SIZE", 1)), strategy="ddp")
    fabric.launch()
    fabric.seed_everything(0)
    train_loader = DataLoader(blobs(192, 0), batch_size=24 // fabric.world_size, shuffle=True)
    val_loader = DataLoader(blobs(96, 1), batch_size=12)
    train_loader, val_loader = fabric.setup_dataloaders(train_loader, val_loader)
    model = nn.Sequential(nn.Linear(5, 20), nn.ReLU(), nn.Linear(20, 3))
    model, optimizer = fabric.setup(model, torch.optim.Adam(model.parameters(), lr=2e-3))
    for epoch in range(2):
        for x, y in train_loader:
            optimizer.zero_grad()
            fabric.backward(F.cross_entropy(model(x), y))
            optimizer.step()
        accuracy = validate(model, val_loader)
        if fabric.is_global_zero:
            print(f"epoch {epoch}: validation accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
