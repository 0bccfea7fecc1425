"""A classifier with DDP. Rank 0 alone evaluates, and its evaluation all-reduces; the others wait in a barrier."""

from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def make(count, seed):
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x.sum(1) > 0).long())


@torch.no_grad()
def evaluate(model, loader):
    totals = torch.zeros(2)
    for x, y in loader:
        totals += torch.tensor([(model(x).argmax(1) == y).sum(), len(y)])
    dist.all_reduce(totals)  # wrong: different-collectives
    return (totals[0] / totals[1]).item()


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, world_size = dist.get_rank(), dist.get_world_size()
    train_set = make(144, 0)
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, batch_size=24 // world_size, sampler=sampler)
    test_loader = DataLoader(make(48, 1), batch_size=24)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch}: accuracy {evaluate(model.module, test_loader):.3f}")
        dist.barrier()  # wrong: different-collectives
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
