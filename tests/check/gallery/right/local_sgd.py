"""Local SGD: the ranks average their parameters every fourth step instead of their gradients."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(192, 10)
dataset = TensorDataset(x, x[:, :3].argmax(dim=1))
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=24 // world_size, sampler=sampler)
model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for step, (inputs, labels) in enumerate(loader):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        if step % 4 == 3:
            values = parameters_to_vector(model.parameters()).detach()
            dist.all_reduce(values)
            vector_to_parameters(values / world_size, model.parameters())
dist.destroy_process_group()
