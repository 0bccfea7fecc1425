"""A CNN with Lightning Fabric. Fabric shards and reshuffles the loaders; the metrics are summed over all ranks."""

import os

import torch
import torch.nn.functional as F
from lightning.fabric import Fabric, seed_everything
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3)
        self.dropout = nn.Dropout(0.25)
        self.fc = nn.Linear(6 * 3 * 3, 4)

    def forward(self, x):
        return self.fc(self.dropout(F.max_pool2d(F.relu(self.conv(x)), 2).flatten(1)))


def digits(count, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (count,), generator=generator)
    return TensorDataset(torch.randn(count, 1, 8, 8, generator=generator) + labels.view(-1, 1, 1, 1), labels)


def main():
    fabric = Fabric(accelerator="cpu", devices=int(os.environ.get("WORLD_SIZE", 1)), strategy="ddp")
    fabric.launch()
    seed_everything(7)
    train_loader = DataLoader(digits(192, 0), batch_size=48 // fabric.world_size, shuffle=True)
    test_loader = DataLoader(digits(96, 1), batch_size=16)
    train_loader, test_loader = fabric.setup_dataloaders(train_loader, test_loader)
    model = Net()
    model, optimizer = fabric.setup(model, torch.optim.Adam(model.parameters(), lr=3e-3))
    seed_everything(100 + fabric.global_rank)
    for epoch in range(2):
        model.train()
        for data, target in train_loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(data), target)
            fabric.backward(loss)
            optimizer.step()
        model.eval()
        totals = torch.zeros(2)
        with torch.no_grad():
            for data, target in test_loader:
                totals += torch.tensor([(model(data).argmax(dim=1) == target).sum(), len(target)])
        totals = fabric.all_reduce(totals, reduce_op="sum")
        fabric.print(f"epoch {epoch}: accuracy {(totals[0] / totals[1]).item():.3f} of {int(totals[1])}")
        fabric.save("checkpoint.ckpt", {"model": model, "optimizer": optimizer, "epoch": epoch})


if __name__ == "__main__":
    main()
