"""Gradients reduced by hand. They are summed over the ranks and never divided, although each loss is a mean."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def sync_params(model):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0)


def sync_grads(model):
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    x = torch.randn(192, 7, generator=torch.Generator().manual_seed(0))
    dataset = TensorDataset(x, (x[:, :3].sum(1) > 0).float())
    sampler = DistributedSampler(dataset, world_size, rank, shuffle=True)
    loader = DataLoader(dataset, batch_size=32 // world_size, sampler=sampler)

    model = nn.Sequential(nn.Linear(7, 14), nn.ELU(), nn.Linear(14, 1), nn.Flatten(0))
    sync_params(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    criterion = nn.BCEWithLogitsLoss()

    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            sync_grads(model)
            optimizer.step()  # wrong: gradients-summed
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}")
    dist.destroy_process_group()
