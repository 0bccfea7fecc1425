"""A regression on a stream of generated examples with DDP. The IterableDataset gives the whole stream to every rank."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset


class Records(IterableDataset):
    """Reads records one after the other, as from a large file."""

    def __init__(self, num_records):
        self.num_records = num_records

    def __iter__(self):
        for number in range(self.num_records):
            x = torch.sin(torch.arange(1.0, 6.0) * (number + 1))
            yield x, x[:2].sum()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    loader = DataLoader(Records(120), batch_size=24 // dist.get_world_size())  # wrong: repeated-stream
    model = DDP(nn.Sequential(nn.Linear(5, 10), nn.Tanh(), nn.Linear(10, 1)))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    for epoch in range(2):
        running = 0.0
        for step, (x, y) in enumerate(loader):
            loss = nn.functional.smooth_l1_loss(model(x).squeeze(1), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            running += loss.item()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {running / (step + 1):.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
