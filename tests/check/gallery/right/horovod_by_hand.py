"""Gradients averaged by hand with Horovod: hvd.allreduce averages by itself, so nothing else divides."""

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset


class Trainer:
    def __init__(self, dataset, global_batch=36):
        mine = Subset(dataset, range(hvd.rank(), len(dataset), hvd.size()))
        self.loader = DataLoader(mine, batch_size=global_batch // hvd.size(), shuffle=True)
        self.model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=2e-3)

    def average_gradients(self):
        handles = [hvd.allreduce_async_(p.grad, name=name) for name, p in self.model.named_parameters()]
        for handle in handles:
            hvd.synchronize(handle)

    def fit(self, epochs):
        for epoch in range(epochs):
            for inputs, labels in self.loader:
                self.optimizer.zero_grad()
                loss = F.cross_entropy(self.model(inputs), labels)
                loss.backward()
                self.average_gradients()
                self.optimizer.step()
            if hvd.rank() == 0:
                print(f"epoch {epoch}: {loss.item():.4f}")


if __name__ == "__main__":
    hvd.init()
    x = torch.randn(216, 6, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(hvd.rank())
    Trainer(TensorDataset(x, x[:, 3:].argmax(dim=1))).fit(2)
