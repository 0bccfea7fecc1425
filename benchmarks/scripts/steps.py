"""A DDP script that times its own steps after the first ones: `steps.py mlp answer.json`."""

import json
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

kind, answer = sys.argv[1:]
dist.init_process_group("gloo")
torch.manual_seed(0)
if kind == "mlp":
    steps, inputs = 1500, torch.randn(12_800, 64)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
else:
    steps, inputs = 100, torch.randn(2_560, 3, 32, 32)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 64, 10),
    )  # fmt: skip
data = TensorDataset(inputs, torch.randint(0, 10, (len(inputs),)))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=32, sampler=sampler)
model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
first, done, epoch = 20, 0, 0
while done < first + steps:
    sampler.set_epoch(epoch)
    epoch += 1
    for x, y in loader:
        if done == first:
            dist.barrier()
            wall, processor = time.perf_counter(), time.process_time()
        if done == first + steps:
            break
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        done += 1
seconds = {"wall": (time.perf_counter() - wall) / steps, "processor": (time.process_time() - processor) / steps}
if dist.get_rank() == 0:
    with open(answer, "w", encoding="utf-8") as file:
        json.dump(seconds, file)
dist.destroy_process_group()
