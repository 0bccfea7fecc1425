"""A regression with DDP. The loss is divided by the number of workers, as if DDP added the gradients."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    x = torch.randn(160, 5)
    dataset = TensorDataset(x, x.cos().sum(dim=1))
    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank)
    loader = DataLoader(dataset, batch_size=32 // world_size, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(5, 20), nn.ReLU(), nn.Linear(20, 1), nn.Flatten(0)))
    criterion = nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y) / world_size
            loss.backward()
            optimizer.step()  # wrong: gradients-averaged-twice
        if rank == 0:
            print(f"epoch {epoch}, loss {loss.item() * world_size:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
