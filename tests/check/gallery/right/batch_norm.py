"""A CNN with batch norm under DDP and 24 examples or more for each statistic; the best epoch is kept."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class ConvNet(nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
        )
        self.head = nn.Linear(32, classes)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    x = torch.randn(288, 3, 6, 6)
    dataset = TensorDataset(x, x.mean(dim=(2, 3)).argmax(dim=1))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=72 // world_size, sampler=sampler)
    model = DDP(ConvNet())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    best = float("inf")
    for epoch in range(3):
        sampler.set_epoch(epoch)
        model.train()
        total = torch.zeros(1)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        if rank == 0 and total.item() < best:
            best = total.item()
            torch.save(model.module.state_dict(), "best.pt.part")
            os.rename("best.pt.part", "best.pt")
            print(f"epoch {epoch}: loss {best / world_size / len(loader):.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
