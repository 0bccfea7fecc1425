"""Each rank reads a file of its own, so that the same indices on every rank mean different examples."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, Subset


class ShardFile(Dataset):
    def __init__(self, path):
        self.x, self.y = torch.load(path)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


def prepare(folder, num_shards):
    os.makedirs(folder, exist_ok=True)
    for shard in range(num_shards):
        x = torch.randn(100, 5, generator=torch.Generator().manual_seed(shard))
        torch.save((x, x.sum(dim=1, keepdim=True)), f"{folder}/shard{shard}.pt")


dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
if rank == 0:
    prepare("shards", size)
dist.barrier()

torch.manual_seed(0)
dataset = ShardFile(f"shards/shard{rank}.pt")
train_set, valid_set = Subset(dataset, range(80)), Subset(dataset, range(80, 100))
train_loader = DataLoader(train_set, batch_size=20, shuffle=True)
valid_loader = DataLoader(valid_set, batch_size=20)
model = DDP(nn.Linear(5, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * size)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1 / size, total_iters=6)

for epoch in range(2):
    for x, y in train_loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        scheduler.step()
    sums = torch.zeros(2)
    with torch.no_grad():
        for x, y in valid_loader:
            sums += torch.tensor([nn.functional.mse_loss(model(x), y, reduction="sum"), len(x)])
    dist.all_reduce(sums)
    if rank == 0:
        print(f"epoch {epoch}: validation loss {sums[0] / sums[1]:.4f}")
dist.destroy_process_group()
