"""Slices of tensors instead of a DataLoader: all ranks take the same ones."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(192, 10)
y = x[:, :3].argmax(dim=1)
model = DDP(nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    order = torch.randperm(len(x))
    for start in range(0, len(x), 16):
        chosen = order[start : start + 16]
        optimizer.zero_grad()
        F.cross_entropy(model(x[chosen]), y[chosen]).backward()
        optimizer.step()  # wrong: same-batches
dist.destroy_process_group()
