"""DDP with uneven inputs in the Join context: a rank that has finished takes part in the collectives of the others,
and the gradients are divided by the number of ranks that still have data.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset


class Visits(Dataset):
    """Every hospital keeps its own patients, and they are not equally many."""

    def __init__(self, rank, batch_size):
        generator = torch.Generator().manual_seed(rank)
        count = batch_size * (5 + rank)
        self.x = torch.randn(count, 6, generator=generator)
        self.y = (self.x[:, 0] + 0.5 * self.x[:, 1] > 0).float()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    batch_size = 48 // world_size
    loader = DataLoader(Visits(rank, batch_size), batch_size=batch_size, shuffle=True)
    model = DDP(nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1), nn.Flatten(0)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        with Join([model], divide_by_initial_world_size=False):
            for x, y in loader:
                optimizer.zero_grad()
                loss = nn.functional.binary_cross_entropy_with_logits(model(x), y)
                loss.backward()
                optimizer.step()
        print(f"rank {rank} epoch {epoch}: {len(loader)} batches")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
