"""A classifier with DDP. Each rank evaluates its half of the test set; rank 0 prints its own half as the result."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def dataset(count, seed):
    x = torch.randn(count, 2, 6, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x[:, 0].sum(1) > x[:, 1].sum(1)).long())


def train_epoch(model, loader, optimizer):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


@torch.no_grad()
def validate(model, loader):
    model.eval()
    correct = total = 0
    for x, y in loader:  # wrong: shard-as-whole
        correct += (model(x).argmax(dim=1) == y).sum().item()
        total += y.size(0)
    return 100.0 * correct / total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", default=2, type=int)
    parser.add_argument("-b", "--batch-size", default=48, type=int, help="of all workers together")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    train_set, test_set = dataset(240, 1), dataset(96, 2)
    train_sampler = DistributedSampler(train_set)
    batch_size = args.batch_size // dist.get_world_size()
    train_loader = DataLoader(train_set, batch_size, sampler=train_sampler)
    test_loader = DataLoader(test_set, 16, sampler=DistributedSampler(test_set, shuffle=False))
    model = DDP(nn.Sequential(nn.Flatten(), nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(args.epochs):
        train_sampler.set_epoch(epoch)
        train_epoch(model, train_loader, optimizer)
        accuracy = validate(model, test_loader)
        if dist.get_rank() == 0:
            print(f"* Epoch {epoch} Acc@1 {accuracy:.2f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
