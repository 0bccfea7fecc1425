"""A serial script as people write it: a CNN on images in memory. It prints its images/s as the last line."""

import json
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(512, 3, 32, 32), torch.randint(0, 10, (512,)))
loader = DataLoader(data, batch_size=128, shuffle=True)
model = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3, padding=1), nn.GroupNorm(4, 64), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(64 * 64, 10),
)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
speeds = []
for _ in range(6):
    started = time.perf_counter()
    for images, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
    speeds.append(len(data) / (time.perf_counter() - started))
print(json.dumps(statistics.median(speeds[1:])), flush=True)
