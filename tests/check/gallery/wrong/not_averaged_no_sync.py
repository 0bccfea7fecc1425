"""Gradient accumulation with DDP. no_sync covers every micro-batch, the last of each step too: nothing is averaged."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

ACCUMULATION_STEPS = 2

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(192, 6)
dataset = TensorDataset(x, x.prod(dim=1, keepdim=True))
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=24 // dist.get_world_size(), sampler=sampler)
model = DDP(nn.Sequential(nn.Linear(6, 18), nn.SiLU(), nn.Linear(18, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

for epoch in range(2):
    sampler.set_epoch(epoch)
    for i, (inputs, targets) in enumerate(loader):
        with model.no_sync():
            loss = nn.functional.mse_loss(model(inputs), targets) / ACCUMULATION_STEPS
            loss.backward()
        if (i + 1) % ACCUMULATION_STEPS == 0:
            optimizer.step()  # wrong: gradients-not-averaged
            optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: {loss.item() * ACCUMULATION_STEPS:.4f}")

dist.destroy_process_group()
