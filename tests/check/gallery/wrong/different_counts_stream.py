"""A stream of three files with DDP, dealt out by rank: rank 0 reads two files, rank 1 only one."""

import datetime
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

FILES = ["part-0", "part-1", "part-2"]


class FileStream(IterableDataset):
    def __init__(self, files):
        self.files = files

    def __iter__(self):
        for name in self.files:
            generator = torch.Generator().manual_seed(int(name[-1]))
            for _ in range(32):
                x = torch.randn(6, generator=generator)
                yield x, x.abs().sum().view(1)


def setup():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


if __name__ == "__main__":
    rank, world_size = setup()
    torch.manual_seed(0)
    mine = FILES[rank::world_size]
    loader = DataLoader(FileStream(mine), batch_size=16 // world_size)  # wrong: different-batch-counts
    net = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1)))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    for epoch in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(net(x), y)
            loss.backward()
            optimizer.step()
        dist.barrier()
        print(f"rank {rank} finished epoch {epoch}")
    dist.destroy_process_group()
