"""A classifier with Lightning Fabric. Rank 0 overwrites the last checkpoint in place with torch.save."""

import os

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(fabric, model, optimizer, loader, epochs):
    for epoch in range(epochs):
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            fabric.backward(loss)
            optimizer.step()
        if fabric.is_global_zero:
            checkpoint = {"model": model.module.state_dict(), "epoch": epoch}
            torch.save(checkpoint, "last.ckpt")  # wrong: torn-checkpoint
            print(f"epoch {epoch}: {loss.item():.4f}")


if __name__ == "__main__":
    fabric = Fabric(accelerator="cpu", devices=int(os.environ.get("WORLD_SIZE", 1)), strategy="ddp")
    fabric.launch()
    fabric.seed_everything(3)
    x = torch.randn(192, 6)
    loader = DataLoader(TensorDataset(x, x[:, :2].argmax(1)), batch_size=32 // fabric.world_size, shuffle=True)
    loader = fabric.setup_dataloaders(loader)
    model = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    model, optimizer = fabric.setup(model, optimizer)
    train(fabric, model, optimizer, loader, epochs=3)
