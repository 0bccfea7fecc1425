"""A regression with Horovod. The data set already keeps this rank's rows only, and the rows are divided once more."""

import horovod.torch as hvd
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset, Subset


class SensorData(Dataset):
    """Each rank keeps every size-th reading."""

    def __init__(self, total, rank, size):
        generator = torch.Generator().manual_seed(9)
        readings = torch.randn(total, 4, generator=generator)
        self.readings = readings[rank::size]
        self.targets = self.readings.pow(2).sum(dim=1, keepdim=True)

    def __len__(self):
        return len(self.readings)

    def __getitem__(self, index):
        return self.readings[index], self.targets[index]


def main():
    hvd.init()
    torch.manual_seed(0)
    dataset = SensorData(288, hvd.rank(), hvd.size())
    mine = Subset(dataset, range(hvd.rank(), len(dataset), hvd.size()))
    loader = DataLoader(mine, batch_size=24 // hvd.size(), shuffle=True)  # wrong: skipped-data

    model = nn.Sequential(nn.Linear(4, 20), nn.ReLU(), nn.Linear(20, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    for epoch in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
        average = hvd.allreduce(loss.detach(), name="loss")
        if hvd.rank() == 0:
            print("epoch", epoch, "loss", average.item())


if __name__ == "__main__":
    main()
