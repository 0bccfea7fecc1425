"""A classifier with DDP, which averages the gradients; the loop divides them by the number of workers once more."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Trainer:
    def __init__(self, dataset, batch_size=48):
        self.world_size = dist.get_world_size()
        self.sampler = DistributedSampler(dataset)
        self.loader = DataLoader(dataset, batch_size // self.world_size, sampler=self.sampler)
        self.model = DDP(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def train_step(self, x, y):
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        for p in self.model.parameters():
            p.grad /= self.world_size
        self.optimizer.step()  # wrong: gradients-averaged-twice
        return loss.detach()

    def fit(self, epochs):
        for epoch in range(epochs):
            self.sampler.set_epoch(epoch)
            losses = torch.stack([self.train_step(x, y) for x, y in self.loader]).mean()
            dist.all_reduce(losses)
            if dist.get_rank() == 0:
                print(f"epoch {epoch}: loss {losses.item() / self.world_size:.4f}")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    x = torch.randn(240, 8)
    Trainer(TensorDataset(x, x[:, :4].argmin(dim=1))).fit(2)
    dist.destroy_process_group()
