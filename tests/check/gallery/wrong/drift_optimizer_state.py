"""A training in two stages with Horovod. For the second stage rank 0 alone loads the checkpoint; the parameters are
broadcast, but the optimizer's momentum is not.
"""

import os

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def make():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


def train(model, optimizer, loader, epochs):
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    distributed = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    for epoch in epochs:
        loader.sampler.set_epoch(epoch)
        for inputs, targets in loader:
            distributed.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            distributed.step()  # wrong: drift
        if hvd.rank() == 0:
            print(f"epoch {epoch}: {loss.item():.4f}")
    return distributed


def main():
    hvd.init()
    x = torch.randn(144, 4, generator=torch.Generator().manual_seed(1))
    dataset = TensorDataset(x, x.sum(dim=1, keepdim=True))
    sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(dataset, batch_size=24 // hvd.size(), sampler=sampler)

    model, optimizer = make()
    optimizer = train(model, optimizer, loader, epochs=[0])
    if hvd.rank() == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "stage1.tmp")
        os.replace("stage1.tmp", "stage1.pt")

    model, optimizer = make()
    if hvd.rank() == 0:
        checkpoint = torch.load("stage1.pt")
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
    train(model, optimizer, loader, epochs=[1, 2])


if __name__ == "__main__":
    main()
