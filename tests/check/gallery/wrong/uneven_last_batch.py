"""A classifier with DDP and its own sharding of 93 examples. Every rank has 6 batches, but the last ones have 7 and
6 examples, and their means count alike.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset


class Shard(Dataset):
    def __init__(self, rank, world_size):
        x = torch.randn(93, 5, generator=torch.Generator().manual_seed(0))
        self.x = x[rank::world_size]
        self.y = (self.x.sum(dim=1) > 0).long()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    loader = DataLoader(Shard(dist.get_rank(), dist.get_world_size()), 16 // dist.get_world_size(), shuffle=True)
    model = DDP(nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()  # wrong: uneven-mean
        if dist.get_rank() == 0:
            print(epoch, loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
