"""A GAN. The generator is wrapped in DDP, the discriminator was forgotten: each rank trains its own."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

nz = 3

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
real_data = torch.randn(192, 2) @ torch.tensor([[1.0, 0.8], [0.0, 0.6]])
dataset = TensorDataset(real_data)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=32 // dist.get_world_size(), sampler=sampler)

netG = DDP(nn.Sequential(nn.Linear(nz, 12), nn.ReLU(), nn.Linear(12, 2)))
netD = nn.Sequential(nn.Linear(2, 12), nn.LeakyReLU(0.2), nn.Linear(12, 1))
optimizer_g = torch.optim.Adam(netG.parameters(), lr=1e-3, betas=(0.5, 0.999))
optimizer_d = torch.optim.Adam(netD.parameters(), lr=1e-3, betas=(0.5, 0.999))
torch.manual_seed(1 + rank)

for epoch in range(2):
    sampler.set_epoch(epoch)
    for (real,) in loader:
        fake = netG(torch.randn(len(real), nz))
        optimizer_d.zero_grad()
        loss_d = F.softplus(-netD(real)).mean() + F.softplus(netD(fake.detach())).mean()
        loss_d.backward()
        optimizer_d.step()  # wrong: gradients-not-averaged

        netD.requires_grad_(False)
        optimizer_g.zero_grad()
        loss_g = F.softplus(-netD(fake)).mean()
        loss_g.backward()
        optimizer_g.step()
        netD.requires_grad_(True)
    if rank == 0:
        print(f"[{epoch}] Loss_D {loss_d.item():.4f} Loss_G {loss_g.item():.4f}")
dist.destroy_process_group()
