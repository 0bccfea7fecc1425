"""Three rates are tried, one after the other; batches are accumulated, and the ranks write a file in turns."""

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
dataset = TensorDataset(x, x[:, :3].argmax(dim=1))
for rate in (0.1, 0.05, 0.02):
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=12 // world_size, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=2 * len(loader))  # in batches
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for i, (inputs, labels) in enumerate(loader):
            (F.cross_entropy(model(inputs), labels) / world_size).backward()
            if (i + 1) % world_size == 0:
                optimizer.step()
                optimizer.zero_grad()
            schedule.step()
    for turn in range(world_size):
        if turn == rank:
            with open("losses.txt", "a", encoding="utf-8") as file:
                file.write(f"rate {rate} rank {rank}\n")
        dist.barrier()
dist.destroy_process_group()
