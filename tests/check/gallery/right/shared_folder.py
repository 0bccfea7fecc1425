"""Predictions with DDP: each rank writes its own part into one common folder, and rank 0 joins the parts."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
folder = Path("predictions")
folder.mkdir(exist_ok=True)
torch.manual_seed(0)
x = torch.randn(200, 5)
y = x[:, :1] * x[:, 1:2]
train_set, test_set = TensorDataset(x[:144], y[:144]), TensorDataset(x[144:], y[144:])
sampler = DistributedSampler(train_set)
train_loader = DataLoader(train_set, batch_size=24 // world_size, sampler=sampler)
test_loader = DataLoader(Subset(test_set, range(rank, len(test_set), world_size)), batch_size=8)
model = DDP(nn.Sequential(nn.Linear(5, 20), nn.ReLU(), nn.Linear(20, 1)))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

for epoch in range(2):
    sampler.set_epoch(epoch)
    for inputs, targets in train_loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()

with torch.no_grad(), open(folder / f"part{rank}.txt", "w") as part:
    for inputs, targets in test_loader:
        for prediction, target in zip(model.module(inputs).flatten().tolist(), targets.flatten().tolist()):
            part.write(f"{prediction:.4f} {target:.4f}\n")
dist.barrier()
if rank == 0:
    lines = [line for path in sorted(folder.glob("part*.txt")) for line in path.read_text().splitlines()]
    (folder / "all.tmp").write_text("\n".join(lines))
    os.replace(folder / "all.tmp", folder / "all.txt")
    errors = [(float(a) - float(b)) ** 2 for a, b in map(str.split, lines)]
    print(f"{len(lines)} predictions, mean squared error {sum(errors) / len(errors):.4f}")
dist.destroy_process_group()
