"""A classifier with DDP. The test set does not divide; the sampler's repeated examples are taken away again."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def make_data(count, seed):
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x[:, 0] > x[:, 1] * x[:, 2]).long())


@torch.no_grad()
def evaluate(model, loader, total):
    """Gathers every rank's predictions in the order of the data set and leaves out the padding at the end."""
    hits = torch.cat([(model(x).argmax(dim=1) == y).float() for x, y in loader])
    everyone = [torch.empty_like(hits) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, hits)
    return torch.stack(everyone, dim=1).flatten()[:total].mean().item()


def main():
    dist.init_process_group("gloo")
    train_set, test_set = make_data(192, 0), make_data(53, 1)
    train_sampler = DistributedSampler(train_set)
    train_loader = DataLoader(train_set, batch_size=24 // dist.get_world_size(), sampler=train_sampler)
    test_loader = DataLoader(test_set, batch_size=10, sampler=DistributedSampler(test_set, shuffle=False))
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(6, 18), nn.ReLU(), nn.Linear(18, 2)))
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    for epoch in range(2):
        train_sampler.set_epoch(epoch)
        for x, y in train_loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        accuracy = evaluate(model, test_loader, len(test_set))
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: accuracy {accuracy:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
