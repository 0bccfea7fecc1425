"""Rueda's own five lines with plain SGD. The rate is multiplied by the rank, where the number of workers was meant."""

import torch
from torch import nn

import rueda

world = rueda.init(seed=0)
generator = torch.Generator().manual_seed(4)
points = torch.randn(192, 2, generator=generator)
rings = (points.norm(dim=1) > 1.2).long()

loader = rueda.Loader(rueda.Arrays(points, rings), batch=32 // world.size)
model = world.wrap(nn.Sequential(nn.Linear(2, 24), nn.ReLU(), nn.Linear(24, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * (1 + 0.5 * world.rank))

for epoch in range(2):
    for inputs, targets in loader:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # wrong: drift
    if world.is_main:
        print(f"epoch {epoch}: {loss.item():.3f}")

rueda.finish()
