"""Gradients averaged by hand. Each rank makes its model from its own seed, and nobody broadcasts the parameters."""

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Subset, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(9, 20)
        self.fc2 = nn.Linear(20, 3)

    def forward(self, x):
        return self.fc2(torch.sigmoid(self.fc1(x)))


def average_gradients(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.randn(192, 9, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(x, x[:, :3].argmax(1))
    torch.manual_seed(1000 + rank)
    loader = DataLoader(Subset(data, range(rank, len(data), size)), batch_size=32 // size, shuffle=True)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), labels)
            loss.backward()
            average_gradients(model)
            optimizer.step()  # wrong: different-start
        if rank == 0:
            print(f"epoch {epoch}, loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
