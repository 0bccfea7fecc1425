"""The same script, converted to DistributedDataParallel by hand."""

import json
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
size = dist.get_world_size()
torch.manual_seed(0)
data = TensorDataset(torch.randn(512, 3, 32, 32), torch.randint(0, 10, (512,)))
sampler = DistributedSampler(data, shuffle=True)
loader = DataLoader(data, batch_size=128 // size, sampler=sampler)
model = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3, padding=1), nn.GroupNorm(4, 64), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(64 * 64, 10),
)  # fmt: skip
model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
speeds = []
for epoch in range(6):
    sampler.set_epoch(epoch)
    started = time.perf_counter()
    for images, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
    speeds.append(len(data) / (time.perf_counter() - started))
print(json.dumps(statistics.median(speeds[1:])), flush=True)
dist.destroy_process_group()
os._exit(0)  # a process group of torch that is taken down with the interpreter aborts now and then
