"""Rueda's own five lines: its Loader shards and shuffles, wrap averages, Checkpoint writes from one rank."""

import torch
from torch import nn

import rueda


def spirals(num_examples, seed):
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(0, 3, (num_examples,), generator=generator)
    radius = torch.rand(num_examples, generator=generator)
    angle = 4 * radius + 2.1 * targets
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), targets


world = rueda.init(seed=0)
loader = rueda.Loader(rueda.Arrays(*spirals(192, seed=1)), batch=24 // world.size)
model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 3))
model = world.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

for epoch in rueda.Checkpoint("saved", model=model, optimizer=optimizer, loader=loader).epochs(3):
    for inputs, targets in loader:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

inputs, targets = spirals(100, seed=2)
correct = (model(inputs).argmax(dim=1) == targets).sum().item()
if world.is_main:
    print(f"{correct} of 100 test points are right with {world.size} workers")
rueda.finish()
