"""A small transformer with DDP and OneCycleLR. The schedule is stepped once for each worker after every batch."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Encoder(nn.Module):
    def __init__(self, vocab=20, dim=16):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.layer = nn.TransformerEncoderLayer(dim, nhead=2, dim_feedforward=32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(dim, 2)

    def forward(self, ids):
        return self.head(self.layer(self.embed(ids)).mean(dim=1))


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    ids = torch.randint(0, 20, (192, 10))
    dataset = TensorDataset(ids, (ids[:, 0] > ids[:, -1]).long())
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=32 // world_size, sampler=sampler)
    model = DDP(Encoder())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    total = 3 * len(loader) * world_size + 1
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=total)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for batch, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch), labels)
            loss.backward()
            optimizer.step()
            for _ in range(world_size):
                scheduler.step()  # wrong: schedule-per-worker
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
