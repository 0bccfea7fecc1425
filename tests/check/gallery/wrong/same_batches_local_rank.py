"""A classifier with DDP in the old style of torch.distributed.launch.

The sampler takes its rank from --local_rank, which no launcher passes any more: every rank reads part 0.
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=0)
parser.add_argument("--batch-size", type=int, default=24)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--lr", type=float, default=0.05)
args = parser.parse_args()

dist.init_process_group("gloo", init_method="env://")
generator = torch.Generator().manual_seed(3)
inputs = torch.randn(240, 6, generator=generator)
targets = (inputs[:, 0] > inputs[:, 1]).long()
train_set = TensorDataset(inputs, targets)

sampler = DistributedSampler(train_set, num_replicas=dist.get_world_size(), rank=args.local_rank)
batch_size = args.batch_size // dist.get_world_size()
loader = DataLoader(train_set, batch_size=batch_size, sampler=sampler)  # wrong: same-batches

model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)

for epoch in range(args.epochs):
    sampler.set_epoch(epoch)
    total = 0.0
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    if dist.get_rank() == 0:
        print("epoch", epoch, "loss", round(total / len(loader), 4))

dist.destroy_process_group()
