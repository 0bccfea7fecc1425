"""A VAE with DDP. Every rank saves the checkpoint under one name after each epoch."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class VAE(nn.Module):
    def __init__(self, width=12, latent=3):
        super().__init__()
        self.encoder = nn.Linear(width, 2 * latent)
        self.decoder = nn.Linear(latent, width)

    def forward(self, x):
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        z = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        return self.decoder(z), mean, log_variance


def elbo(output, x, mean, log_variance):
    divergence = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum(dim=1).mean()
    return F.mse_loss(output, x, reduction="sum") / len(x) + divergence


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
x = torch.randn(144, 3) @ torch.randn(3, 12)
dataset = TensorDataset(x)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=24 // dist.get_world_size(), sampler=sampler)
model = DDP(VAE())
torch.manual_seed(100 + rank)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for epoch in range(2):
    sampler.set_epoch(epoch)
    for (batch,) in loader:
        output, mean, log_variance = model(batch)
        loss = elbo(output, batch, mean, log_variance)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
    torch.save(state, "checkpoint.tmp")  # wrong: same-file
    dist.barrier()
    if rank == 0:
        os.replace("checkpoint.tmp", "checkpoint.pt")
        print(f"epoch {epoch}: {loss.item():.3f}")
    dist.barrier()
dist.destroy_process_group()
