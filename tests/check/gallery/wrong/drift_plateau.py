"""A regression with DDP. ReduceLROnPlateau follows each rank's own loss, so the ranks soon have different rates."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BATCH_SIZE = 24
INTERVAL = 2


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    x = torch.randn(192, 6)
    y = x[:, :1] - 2 * x[:, 1:2] + torch.randn(192, 1)
    dataset = TensorDataset(x, y)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=BATCH_SIZE // dist.get_world_size(), sampler=sampler)
    model = DDP(nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        window = 0.0
        for step, (inputs, targets) in enumerate(loader, start=1):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()  # wrong: drift
            window += loss.item()
            if step % INTERVAL == 0:
                scheduler.step(window / INTERVAL)
                window = 0.0
        print(f"rank {dist.get_rank()} epoch {epoch} lr {optimizer.param_groups[0]['lr']:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
