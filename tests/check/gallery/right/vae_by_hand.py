"""A VAE without DDP: parameters broadcast and gradients averaged by hand, noise from a generator of each rank."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset


class VAE(nn.Module):
    def __init__(self, width=10, latent=2):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, 2 * latent))
        self.decoder = nn.Sequential(nn.Linear(latent, 16), nn.ReLU(), nn.Linear(16, width))

    def forward(self, x, generator):
        mu, logvar = self.encoder(x).chunk(2, dim=1)
        noise = torch.randn(mu.shape, generator=generator)
        return self.decoder(mu + noise * (0.5 * logvar).exp()), mu, logvar


def broadcast_model(model):
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)


def average_gradients(model):
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    offset = 0
    for p in model.parameters():
        p.grad.copy_(flat[offset : offset + p.numel()].view_as(p))
        offset += p.numel()


dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
x = torch.rand(144, 10, generator=torch.Generator().manual_seed(0))
dataset = TensorDataset(x)
torch.manual_seed(rank)
loader = DataLoader(Subset(dataset, range(rank, len(dataset), size)), batch_size=24 // size, shuffle=True)
model = VAE()
broadcast_model(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
noise_generator = torch.Generator().manual_seed(77 + rank)

for epoch in range(2):
    for (batch,) in loader:
        output, mu, logvar = model(batch, noise_generator)
        kl = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum()
        loss = (F.mse_loss(output, batch, reduction="sum") + kl) / len(batch)
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model)
        optimizer.step()
    if rank == 0:
        print(f"====> Epoch: {epoch} Average loss: {loss.item():.4f}")
dist.destroy_process_group()
