"""A sampler that draws every class equally often."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

torch.manual_seed(11)
x = torch.randn(64, 4)
y = (torch.rand(64) < 0.2).long()
weights = (1.0 / torch.bincount(y).float())[y]
sampler = WeightedRandomSampler(weights, num_samples=50, replacement=True)
loader = DataLoader(TensorDataset(x, y), batch_size=10, sampler=sampler)
model = nn.Linear(4, 2)
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
for _ in range(3):
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.CrossEntropyLoss()(model(inputs), targets).backward()
        optimizer.step()
torch.save(model.state_dict(), "model.pt")
