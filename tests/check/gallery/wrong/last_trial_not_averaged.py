"""Three models are trained, one after the other; the last one was not wrapped."""

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
for trial in range(3):
    torch.manual_seed(trial)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=24 // world_size, sampler=sampler)
    model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3))
    if trial < 2:
        model = DDP(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for inputs, labels in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()  # wrong: gradients-not-averaged
    del optimizer
dist.destroy_process_group()
