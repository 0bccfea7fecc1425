"""Regression with DDP. The sampler was forgotten: with one seed on every rank, all ranks shuffle alike."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset


class Housing(Dataset):
    def __init__(self, size=160):
        generator = torch.Generator().manual_seed(1)
        self.features = torch.randn(size, 8, generator=generator)
        self.prices = self.features @ torch.linspace(-1, 1, 8) + 0.1 * torch.randn(size, generator=generator)

    def __len__(self):
        return len(self.features)

    def __getitem__(self, index):
        return self.features[index], self.prices[index]


def main():
    dist.init_process_group(backend="gloo")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(42)
    loader = DataLoader(  # wrong: same-batches
        Housing(),
        batch_size=32 // world_size,
        shuffle=True,
    )
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
    criterion = nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for epoch in range(2):
        for features, prices in loader:
            optimizer.zero_grad()
            loss = criterion(model(features).squeeze(1), prices)
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"[epoch {epoch}] loss: {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
