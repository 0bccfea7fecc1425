"""An IterableDataset that gives each rank, and each process of its loader, every n-th record of the stream."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Records(IterableDataset):
    def __init__(self, num_records, rank, world_size):
        self.num_records, self.rank, self.world_size = num_records, rank, world_size

    def __iter__(self):
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        first = self.rank * workers + worker
        for number in range(first, self.num_records, self.world_size * workers):
            x = torch.cos(torch.arange(1.0, 5.0) * (number + 1))
            yield x, x.sum()


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    loader = DataLoader(Records(144, rank, world_size), batch_size=24 // world_size)
    model = DDP(nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 1), nn.Flatten(0)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch}: {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
