"""A training in two stages with Horovod. Rank 0 loads the checkpoint and broadcasts both parameters and momentum."""

import os

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def save_checkpoint(model, optimizer, epoch):
    if hvd.rank() == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, "last.tmp")
        os.replace("last.tmp", "last.pt")


def run(epochs):
    torch.manual_seed(0)
    x = torch.randn(144, 4)
    dataset = TensorDataset(x, x.sum(dim=1, keepdim=True))
    sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(dataset, batch_size=24 // hvd.size(), sampler=sampler)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    first_epoch = 0
    if hvd.rank() == 0 and os.path.exists("last.pt"):
        checkpoint = torch.load("last.pt")
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        first_epoch = checkpoint["epoch"] + 1
    first_epoch = hvd.broadcast_object(first_epoch, root_rank=0)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    for epoch in range(first_epoch, epochs):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
        save_checkpoint(model, optimizer, epoch)
        if hvd.rank() == 0:
            print(f"epoch {epoch}: {loss.item():.4f}")


if __name__ == "__main__":
    hvd.init()
    run(epochs=1)
    run(epochs=3)
