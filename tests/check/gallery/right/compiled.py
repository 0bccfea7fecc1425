"""A model with its loss that torch.compile must get as one graph."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x, y):
        return F.cross_entropy(self.layers(x), y)


dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(192, 10)
dataset = TensorDataset(x, x[:, :3].argmax(dim=1))
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=24 // world_size, sampler=sampler)
model = DDP(torch.compile(Net(), fullgraph=True, backend="eager"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for inputs, labels in loader:
        optimizer.zero_grad()
        model(inputs, labels).backward()
        optimizer.step()
dist.destroy_process_group()
