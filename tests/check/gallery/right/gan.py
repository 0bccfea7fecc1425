"""A GAN of two DDP models and two optimizers. Each rank has its own seed for the noise."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

LATENT = 4


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    angle = torch.rand(192) * 6.28
    dataset = TensorDataset(torch.stack([angle.cos(), angle.sin()], dim=1))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=24 // dist.get_world_size(), sampler=sampler)
    generator = DDP(nn.Sequential(nn.Linear(LATENT, 16), nn.ReLU(), nn.Linear(16, 2)))
    discriminator = DDP(nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)))
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    torch.manual_seed(1 + rank)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for (real,) in loader:
            fake = generator(torch.randn(len(real), LATENT))
            scores = discriminator(torch.cat([real, fake.detach()])).squeeze(1)
            truth = torch.cat([torch.ones(len(real)), torch.zeros(len(real))])
            loss_d = F.binary_cross_entropy_with_logits(scores, truth)
            optimizer_d.zero_grad()
            loss_d.backward()
            optimizer_d.step()

            discriminator.requires_grad_(False)
            loss_g = F.softplus(-discriminator.module(fake)).mean()
            optimizer_g.zero_grad()
            loss_g.backward()
            optimizer_g.step()
            discriminator.requires_grad_(True)
        if rank == 0:
            print(f"[{epoch}] Loss_D: {loss_d.item():.4f} Loss_G: {loss_g.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
