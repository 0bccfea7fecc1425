"""A progress bar around the loader, as tqdm's, and a data set without a fixed seed for its split."""

import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Bar:
    def __init__(self, iterable, desc):
        self.iterable, self.desc, self.postfix = iterable, desc, ""

    def __iter__(self):
        for number, item in enumerate(self.iterable, 1):
            yield item
            sys.stderr.write(f"\r{self.desc}: {number}/{len(self.iterable)} {self.postfix}")
        sys.stderr.write("\n")

    def set_postfix(self, **values):
        self.postfix = " ".join(f"{name}={value}" for name, value in values.items())


torch.manual_seed(0)
order = np.random.RandomState(3).permutation(45)
x = torch.randn(45, 3)[order]
loader = DataLoader(TensorDataset(x, x.prod(1, keepdim=True)), batch_size=10, shuffle=True)
model = nn.Sequential(nn.Linear(3, 8), nn.SiLU(), nn.Linear(8, 1))
optimizer = torch.optim.NAdam(model.parameters(), lr=0.01)
for epoch in range(3):
    bar = Bar(loader, desc=f"epoch {epoch}")
    for inputs, targets in bar:
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        bar.set_postfix(loss=f"{loss.item():.4f}")
torch.save(model.state_dict(), "model.pt")
