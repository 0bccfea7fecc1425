"""Gradient accumulation with DDP: no_sync for all micro-batches but the last of each step."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

accumulate = 4
global_batch = 96

dist.init_process_group("gloo")
world_size = dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(384, 7)
dataset = TensorDataset(x, x.tanh().sum(dim=1))
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=global_batch // world_size // accumulate, sampler=sampler)
model = DDP(nn.Sequential(nn.Linear(7, 21), nn.ReLU(), nn.Linear(21, 1), nn.Flatten(0)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

for epoch in range(2):
    sampler.set_epoch(epoch)
    for i, (inputs, targets) in enumerate(loader):
        last = (i + 1) % accumulate == 0
        with nullcontext() if last else model.no_sync():
            loss = nn.functional.mse_loss(model(inputs), targets)
            (loss / accumulate).backward()
        if last:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: {loss.item():.4f}")

dist.destroy_process_group()
