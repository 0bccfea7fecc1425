"""A classifier with DDP. Every rank evaluates the whole test set, and rank 0 prints what all have found."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def blobs(count, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (count,), generator=generator)
    return TensorDataset(torch.randn(count, 4, generator=generator) + labels[:, None], labels)


def test(model, loader):
    model.eval()
    correct = 0
    with torch.no_grad():
        for inputs, labels in loader:
            correct += (model(inputs).argmax(dim=1) == labels).sum().item()
    model.train()
    return correct / len(loader.dataset)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    train_set, test_set = blobs(192, 0), blobs(75, 1)
    sampler = DistributedSampler(train_set)
    train_loader = DataLoader(train_set, batch_size=24 // dist.get_world_size(), sampler=sampler)
    test_loader = DataLoader(test_set, batch_size=25)
    model = DDP(nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3)))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, labels in train_loader:
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        accuracy = test(model, test_loader)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: accuracy {accuracy:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
