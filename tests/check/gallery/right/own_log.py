"""DDP with a log file for each rank, a TensorBoard writer on rank 0 alone and the weights written once at the end."""

import logging

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from torch.utils.tensorboard import SummaryWriter


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(filename=f"rank{rank}.log", level=logging.INFO, format="%(asctime)s %(message)s")
    writer = SummaryWriter("runs/own_log") if rank == 0 else None
    torch.manual_seed(0)
    x = torch.randn(192, 6)
    dataset = TensorDataset(x, (x.sum(dim=1) > 0).long())
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=24 // world_size, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for step, (inputs, labels) in enumerate(loader):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            logging.info("epoch %d step %d loss %.4f", epoch, step, loss.item())
            if writer is not None:
                writer.add_scalar("loss", loss.item(), epoch * len(loader) + step)
    if writer is not None:
        writer.close()
        torch.save(model.module.state_dict(), "final.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
