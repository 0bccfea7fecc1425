"""Lightning Fabric with gradient accumulation: no_backward_sync on all micro-batches but the last, then clipping."""

import os

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ACCUMULATE = 3
world_size = int(os.environ.get("WORLD_SIZE", 1))

fabric = Fabric(accelerator="cpu", devices=world_size, strategy="ddp")
fabric.launch()
fabric.seed_everything(1)

x = torch.randn(216, 5)
loader = DataLoader(TensorDataset(x, x.prod(dim=1)), batch_size=12 // world_size, shuffle=True)
loader = fabric.setup_dataloaders(loader)
model = nn.Sequential(nn.Linear(5, 25), nn.ReLU(), nn.Linear(25, 1), nn.Flatten(0))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
model, optimizer = fabric.setup(model, optimizer)

for epoch in range(2):
    for i, (inputs, targets) in enumerate(loader):
        accumulating = (i + 1) % ACCUMULATE != 0
        with fabric.no_backward_sync(model, enabled=accumulating):
            loss = nn.functional.mse_loss(model(inputs), targets)
            fabric.backward(loss / ACCUMULATE)
        if not accumulating:
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
    fabric.print(f"epoch {epoch}: {loss.item():.4f}")
