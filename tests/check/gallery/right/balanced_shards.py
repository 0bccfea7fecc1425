"""Rare classes drawn more often: each rank draws from its own shard with replacement, by a generator of its own."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Subset, TensorDataset, WeightedRandomSampler

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
labels = (torch.rand(192) < 0.2).long()
inputs = torch.randn(192, 4) + labels[:, None]
dataset = TensorDataset(inputs, labels)

mine = list(range(rank, len(dataset), world_size))
frequency = labels[mine].bincount(minlength=2).double()
sampler = WeightedRandomSampler(
    weights=(1 / frequency)[labels[mine]],
    num_samples=len(mine),
    generator=torch.Generator().manual_seed(10 + rank),
)
loader = DataLoader(Subset(dataset, mine), batch_size=24 // world_size, sampler=sampler)
model = DDP(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(f"epoch {epoch}: {loss.item():.4f}")

dist.destroy_process_group()
