"""Gradient accumulation over three batches, the last of an epoch smaller than the others."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(4)
x = torch.randn(53, 5)
y = torch.randn(53, 1)
loader = DataLoader(TensorDataset(x, y), batch_size=9, shuffle=True)
model = nn.Sequential(nn.Linear(5, 12), nn.GELU(), nn.Linear(12, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-4)
accumulate = 3
for _ in range(3):
    optimizer.zero_grad()
    for index, (inputs, targets) in enumerate(loader):
        loss = nn.functional.mse_loss(model(inputs), targets) / accumulate
        loss.backward()
        if (index + 1) % accumulate == 0 or index + 1 == len(loader):
            torch.nn.utils.clip_grad_value_(model.parameters(), 0.2)
            optimizer.step()
            optimizer.zero_grad()
torch.save(model.state_dict(), "model.pt")
