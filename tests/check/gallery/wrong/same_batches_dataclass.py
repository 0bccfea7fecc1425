"""Batches are data classes, taken from an iterator, and the epoch is never finished."""

import dataclasses

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset


@dataclasses.dataclass
class Batch:
    inputs: torch.Tensor
    labels: torch.Tensor


def collate(rows):
    return Batch(torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows]))


dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(192, 10)
dataset = TensorDataset(x, x[:, :3].argmax(dim=1))
loader = DataLoader(dataset, batch_size=8, shuffle=True, collate_fn=collate)  # wrong: same-batches
model = DDP(nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
batches = iter(loader)
for step in range(12):
    batch = next(batches)
    optimizer.zero_grad()
    F.cross_entropy(model(batch.inputs), batch.labels).backward()
    optimizer.step()
dist.destroy_process_group()
