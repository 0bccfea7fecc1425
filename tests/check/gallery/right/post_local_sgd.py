"""torch's post-local SGD: gradients are averaged at first, and then parameters from time to time."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(192, 10)
dataset = TensorDataset(x, x[:, :3].argmax(dim=1))
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=24 // world_size, sampler=sampler)
model = DDP(nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3)))
alone, _ = dist.new_subgroups(1)
model.register_comm_hook(PostLocalSGDState(None, alone, start_localSGD_iter=6), post_localSGD_hook)
averager = PeriodicModelAverager(period=3, warmup_steps=6)
optimizer = PostLocalSGDOptimizer(torch.optim.SGD(model.parameters(), lr=0.05), averager)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for inputs, labels in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
dist.destroy_process_group()
