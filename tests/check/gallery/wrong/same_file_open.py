"""A regression with Horovod. Every rank opens the same log of losses and writes into it."""

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main():
    hvd.init()
    torch.manual_seed(0)
    x = torch.randn(160, 4)
    dataset = TensorDataset(x, x.max(dim=1, keepdim=True).values)
    sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(dataset, batch_size=32 // hvd.size(), sampler=sampler)
    model = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    with open("train_log.csv", "w") as log:  # wrong: same-file
        for epoch in range(2):
            sampler.set_epoch(epoch)
            for step, (inputs, targets) in enumerate(loader):
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(inputs), targets)
                loss.backward()
                optimizer.step()
                log.write(f"{epoch},{step},{loss.item():.5f}\n")
    if hvd.rank() == 0:
        print("done")


if __name__ == "__main__":
    main()
