"""A denoising VAE with Horovod. The seed is the same on all ranks, and so is the noise that the model draws."""

import horovod.torch as hvd
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(12, 16)
        self.mu, self.logvar = nn.Linear(16, 3), nn.Linear(16, 3)
        self.fc2 = nn.Linear(3, 12)

    def forward(self, x):
        h = F.relu(self.fc1(x))
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return self.fc2(z), mu, logvar


def loss_function(output, x, mu, logvar):
    kl = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp(), dim=1).mean()
    return F.mse_loss(output, x) + 0.1 * kl


hvd.init()
torch.manual_seed(1)
data = torch.rand(192, 12)
dataset = TensorDataset(data)
sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
loader = DataLoader(dataset, batch_size=32 // hvd.size(), sampler=sampler)
model = VAE()
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

for epoch in range(2):
    sampler.set_epoch(epoch)
    for (batch,) in loader:
        optimizer.zero_grad()
        output, mu, logvar = model(batch)  # wrong: same-randomness
        loss = loss_function(output, batch, mu, logvar)
        loss.backward()
        optimizer.step()
    if hvd.rank() == 0:
        print(f"====> Epoch: {epoch} loss: {loss.item():.4f}")
