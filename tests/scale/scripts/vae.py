"""A variational autoencoder, whose noise has the shape of its code, and LBFGS for a second phase."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(5)
data = torch.rand(32, 6)
loader = DataLoader(TensorDataset(data), batch_size=8, shuffle=True)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(6, 4), nn.Linear(2, 6)

    def forward(self, x):
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        code = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
        return self.decoder(code), mean, log_variance


model = VAE()
optimizer = torch.optim.Adamax(model.parameters(), lr=0.01)
for _ in range(3):
    for (x,) in loader:
        decoded, mean, log_variance = model(x)
        divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(1).mean()
        loss = nn.functional.mse_loss(decoded, x) + 0.1 * divergence
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

second = torch.optim.LBFGS(model.encoder.parameters(), lr=0.1, max_iter=2)
for (x,) in loader:

    def closure():
        second.zero_grad()
        loss = nn.functional.mse_loss(model.encoder(x), torch.ones(len(x), 4))
        loss.backward()
        return loss

    second.step(closure)
torch.save(model.state_dict(), "model.pt")
