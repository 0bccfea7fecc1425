"""A Trainer class with DDP. Rank 0 alone evaluates the unwrapped model and keeps the best; the others wait."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Trainer:
    def __init__(self, model, train_set, valid_set, batch_size=24):
        self.rank = dist.get_rank()
        self.model = DDP(model)
        self.sampler = DistributedSampler(train_set)
        self.train_loader = DataLoader(train_set, batch_size // dist.get_world_size(), sampler=self.sampler)
        self.valid_loader = DataLoader(valid_set, batch_size)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3)
        self.best = float("inf")

    def train_epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        for x, y in self.train_loader:
            self.optimizer.zero_grad()
            F.mse_loss(self.model(x), y).backward()
            self.optimizer.step()

    @torch.no_grad()
    def evaluate(self):
        losses = [F.mse_loss(self.model.module(x), y, reduction="sum") for x, y in self.valid_loader]
        return sum(losses).item() / len(self.valid_loader.dataset)

    def fit(self, epochs):
        for epoch in range(epochs):
            self.train_epoch(epoch)
            if self.rank == 0:
                loss = self.evaluate()
                print(f"epoch {epoch}: validation loss {loss:.4f}")
                if loss < self.best:
                    self.best = loss
                    torch.save(self.model.module.state_dict(), "best.pt.tmp")
                    os.replace("best.pt.tmp", "best.pt")
            dist.barrier()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    x = torch.randn(264, 6)
    y = (x[:, :3] * x[:, 3:]).sum(dim=1, keepdim=True)
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
    Trainer(model, TensorDataset(x[:192], y[:192]), TensorDataset(x[192:], y[192:])).fit(3)
    dist.destroy_process_group()
