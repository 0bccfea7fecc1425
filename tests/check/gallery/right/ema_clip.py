"""DDP with gradient clipping, an exponential moving average of the weights and dropout seeded by rank."""

import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class EMA:
    def __init__(self, model, decay=0.9):
        self.shadow = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for ours, theirs in zip(self.shadow.parameters(), model.parameters()):
            ours.lerp_(theirs, 1 - self.decay)


def main(seed=3):
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(seed)
    x = torch.randn(192, 12)
    dataset = TensorDataset(x, (x[:, ::2].sum(1) > x[:, 1::2].sum(1)).long())
    sampler = DistributedSampler(dataset, seed=seed)
    loader = DataLoader(dataset, batch_size=48 // world_size, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 2)))
    ema = EMA(model.module)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(seed + 1 + rank)  # other units are dropped on each rank
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            loss = F.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            ema.update(model.module)
        if rank == 0:
            accuracy = (ema.shadow(x).argmax(1) == dataset.tensors[1]).float().mean()
            print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy of the average {accuracy:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
