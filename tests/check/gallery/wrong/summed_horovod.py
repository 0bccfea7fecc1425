"""A Horovod script whose DistributedOptimizer adds the gradients (op=hvd.Sum) of losses that are means."""

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset


def main():
    hvd.init()
    torch.manual_seed(3)
    x = torch.randn(168, 5)
    dataset = TensorDataset(x, (x * torch.arange(5)).sum(dim=1, keepdim=True))
    shard = Subset(dataset, range(hvd.rank(), len(dataset), hvd.size()))
    loader = DataLoader(shard, batch_size=24 // hvd.size(), shuffle=True)

    model = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), op=hvd.Sum)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    loss_fn = nn.MSELoss()

    for epoch in range(2):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = loss_fn(model(inputs), targets)
            loss.backward()
            optimizer.step()  # wrong: gradients-summed
        if hvd.rank() == 0:
            print("epoch", epoch, "loss", loss.item())


if __name__ == "__main__":
    main()
