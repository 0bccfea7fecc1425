"""DDP on a data set whose rows are all equal, as in a benchmark: the batches look the same, the examples are not."""

import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class SyntheticImages(Dataset):
    def __init__(self, length):
        self.length = length
        self.image = torch.ones(3, 8, 8)

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.image, 1


dist.init_process_group("gloo")
torch.manual_seed(0)
dataset = SyntheticImages(192)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=24 // dist.get_world_size(), sampler=sampler)
model = DDP(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

for epoch in range(2):
    sampler.set_epoch(epoch)
    start = time.perf_counter()
    for images, labels in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: {len(dataset) / (time.perf_counter() - start):.0f} images/s")
dist.destroy_process_group()
