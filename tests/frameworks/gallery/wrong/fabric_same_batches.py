"""A regression with Lightning Fabric. The loader was never set up with Fabric, and one seed holds for all ranks."""

import os

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

fabric = Fabric(accelerator="cpu", devices=int(os.environ.get("WORLD_SIZE", 1)), strategy="ddp")
fabric.launch()
fabric.seed_everything(1234)

x = torch.randn(160, 6)
dataset = TensorDataset(x, x.abs().sum(dim=1, keepdim=True))
loader = DataLoader(dataset, batch_size=32 // fabric.world_size, shuffle=True)  # wrong: same-batches
model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
model, optimizer = fabric.setup(model, optimizer)

for epoch in range(2):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        fabric.backward(loss)
        optimizer.step()
    fabric.print(f"epoch {epoch}: {loss.item():.4f}")
