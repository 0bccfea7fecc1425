"""A regression with DDP. After writing the checkpoint rank 0 waits in a barrier that the others never enter: they are
already in the next backward pass.
"""

import datetime
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank = dist.get_rank()
torch.manual_seed(0)
x = torch.randn(144, 5)
dataset = TensorDataset(x, x.sin().sum(dim=1, keepdim=True))
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=24 // dist.get_world_size(), sampler=sampler)
model = DDP(nn.Sequential(nn.Linear(5, 10), nn.Tanh(), nn.Linear(10, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

for epoch in range(2):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()  # wrong: different-collectives
        optimizer.step()
    if rank == 0:
        torch.save(model.module.state_dict(), "model.pt.tmp")
        os.replace("model.pt.tmp", "model.pt")
        dist.barrier()  # wrong: different-collectives

dist.destroy_process_group()
