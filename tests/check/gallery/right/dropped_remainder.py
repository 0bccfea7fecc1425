"""Own shuffling with drop_last: 200 examples do not divide, and each epoch leaves out a few others."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Sampler, TensorDataset


class EpochShards(Sampler):
    """A permutation of the whole data set for each epoch, the same on every rank; each rank takes its part of it."""

    def __init__(self, length, rank, world_size, seed=0):
        self.length, self.rank, self.world_size, self.seed = length, rank, world_size, seed
        self.epoch = 0

    def __len__(self):
        return self.length // self.world_size

    def __iter__(self):
        order = torch.randperm(self.length, generator=torch.Generator().manual_seed(self.seed + self.epoch))
        self.epoch += 1
        return iter(order.tolist()[self.rank :: self.world_size][: len(self)])


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    x = torch.randn(200, 6)
    dataset = TensorDataset(x, x[:, :3].argmin(dim=1))
    sampler = EpochShards(len(dataset), dist.get_rank(), dist.get_world_size())
    loader = DataLoader(dataset, batch_size=36 // dist.get_world_size(), sampler=sampler, drop_last=True)
    model = DDP(nn.Sequential(nn.Linear(6, 18), nn.ReLU(), nn.Linear(18, 3)))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(3):
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
