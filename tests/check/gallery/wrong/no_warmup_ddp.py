"""A DDP script with argparse. The rate is scaled linearly with the workers and only ever falls (cosine): no warm-up."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.02, help="for one worker")
    parser.add_argument("--batch-size", type=int, default=16, help="of one worker")
    parser.add_argument("--epochs", type=int, default=3)
    return parser.parse_args()


def main():
    args = parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    x = torch.randn(192, 8)
    dataset = TensorDataset(x, x.pow(2).sum(dim=1, keepdim=True).sqrt())
    sampler = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
    args.lr *= dist.get_world_size()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, weight_decay=1e-4)  # wrong: no-warmup
    scheduler = CosineAnnealingLR(optimizer, T_max=args.epochs * len(loader))
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            scheduler.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}, lr {scheduler.get_last_lr()[0]:.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
