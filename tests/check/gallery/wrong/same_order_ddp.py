"""Image classification with DDP and a DistributedSampler. set_epoch is never called: all epochs have one order."""

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.optim as optim
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class FakeDigits(Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        label = index % 10
        return torch.randn(1, 8, 8, generator=generator) + label / 10, label


def train(model, loader, optimizer, epoch, rank):
    model.train()
    for step, (images, labels) in enumerate(loader):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        if rank == 0 and step == 0:
            print(f"Train Epoch: {epoch} Loss: {loss.item():.4f}")


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    dataset = FakeDigits(240)
    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank, shuffle=True)
    loader = DataLoader(dataset, batch_size=48 // world_size, sampler=sampler)  # wrong: same-order
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6, 10))
    model = DDP(model)
    optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    for epoch in range(1, 4):
        train(model, loader, optimizer, epoch, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
