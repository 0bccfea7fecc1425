"""Sampler and loader are made anew for each epoch, which all begin with the same seed."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(192, 10)
y = x[:, :3].argmax(dim=1)
model = DDP(nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
dataset = TensorDataset(x, y)
for epoch in range(3):
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=24 // world_size, sampler=sampler)  # wrong: same-order
    for inputs, labels in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
dist.destroy_process_group()
