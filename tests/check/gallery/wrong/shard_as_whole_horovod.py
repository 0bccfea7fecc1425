"""A regression with Horovod. The validation loss that rank 0 prints is the mean over its own shard only."""

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

hvd.init()
torch.manual_seed(7)
x = torch.randn(288, 5)
y = x.cumsum(dim=1)[:, -1:].sin()
everything = TensorDataset(x, y)
train_ids = range(hvd.rank(), 192, hvd.size())
val_ids = range(192 + hvd.rank(), 288, hvd.size())

model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = torch.optim.Adam(model.parameters(), lr=0.002)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

torch.manual_seed(100 + hvd.rank())
train_loader = DataLoader(Subset(everything, train_ids), batch_size=32 // hvd.size(), shuffle=True)
val_loader = DataLoader(Subset(everything, val_ids), batch_size=16)

for epoch in range(3):
    model.train()
    for inputs, targets in train_loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()

    model.eval()
    val_loss, count = 0.0, 0
    with torch.no_grad():
        for inputs, targets in val_loader:  # wrong: shard-as-whole
            val_loss += nn.functional.mse_loss(model(inputs), targets, reduction="sum").item()
            count += len(targets)
    if hvd.rank() == 0:
        print(f"epoch {epoch}: validation loss {val_loss / count:.4f}")
