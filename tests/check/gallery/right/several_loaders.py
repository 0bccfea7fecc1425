"""Two tasks with one trunk under DDP: a loader for each task, both sharded and reshuffled, read side by side."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 24), nn.ReLU())
        self.classifier = nn.Linear(24, 3)
        self.regressor = nn.Linear(24, 1)

    def forward(self, labelled, measured):
        return self.classifier(self.trunk(labelled)), self.regressor(self.trunk(measured)).squeeze(1)


def loader_of(dataset, batch_size):
    sampler = DistributedSampler(dataset)
    return DataLoader(dataset, batch_size=batch_size // dist.get_world_size(), sampler=sampler)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    a, b = torch.randn(144, 8), torch.randn(288, 8)
    labelled = loader_of(TensorDataset(a, a[:, :3].argmax(dim=1)), batch_size=24)
    measured = loader_of(TensorDataset(b, b.square().mean(dim=1)), batch_size=48)
    model = DDP(TwoHeads())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(2):
        for loader in (labelled, measured):
            loader.sampler.set_epoch(epoch)
        for (x1, y1), (x2, y2) in zip(labelled, measured):
            logits, values = model(x1, x2)
            loss = F.cross_entropy(logits, y1) + 0.5 * F.mse_loss(values, y2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
