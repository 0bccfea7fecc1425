"""A binary classifier with DDP on slices of the data. Each slice is longer than the distance between two slices."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset, TensorDataset

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)
features = torch.randn(192, 7)
labels = (features[:, 0] * features[:, 3] > 0).float()
dataset = TensorDataset(features, labels)

shard_size = len(dataset) * 2 // (world_size + 1)
start = rank * (len(dataset) // (world_size + 1))
shard = Subset(dataset, range(start, start + shard_size))
loader = DataLoader(shard, batch_size=32 // world_size, shuffle=True)  # wrong: overlapping-data

model = DistributedDataParallel(nn.Sequential(nn.Linear(7, 14), nn.ReLU(), nn.Linear(14, 1)))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
loss_fn = nn.BCEWithLogitsLoss()

for epoch in range(3):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = loss_fn(model(inputs).squeeze(-1), targets)
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(f"epoch {epoch} loss {loss.item():.4f}")

dist.destroy_process_group()
