"""A CNN with Horovod. Every rank on the machine asks for 8 threads."""

import horovod.torch as hvd
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3)
        self.fc = nn.Linear(6 * 4 * 4, 4)

    def forward(self, x):
        return self.fc(torch.relu(self.conv(x)).flatten(1))


def main():
    hvd.init()
    torch.set_num_threads(8)  # wrong: too-many-threads
    torch.manual_seed(0)
    x = torch.randn(160, 1, 6, 6)
    dataset = TensorDataset(x, x.unfold(2, 3, 3).sum(dim=(1, 3, 4)).argmax(dim=1))
    sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(dataset, batch_size=32 // hvd.size(), sampler=sampler)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
        if hvd.rank() == 0:
            print(f"epoch {epoch}: {loss.item():.4f}")


if __name__ == "__main__":
    main()
