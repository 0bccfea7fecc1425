"""A GAN with two optimizers, whose noise has a row for each real example."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(999)
real_data = torch.randn(40, 2) @ torch.tensor([[2.0, 1.0], [0.0, 0.5]]) + 1.0
loader = DataLoader(TensorDataset(real_data), batch_size=8, shuffle=True)
generator = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2), nn.Linear(16, 2))
discriminator = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1), nn.Sigmoid())
criterion = nn.BCELoss()
optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999), eps=1e-4)
optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=2e-3, betas=(0.5, 0.999), eps=1e-4)
fixed_noise = torch.randn(5, 4)

for epoch in range(3):
    for (real,) in loader:
        size = real.size(0)
        discriminator.zero_grad()
        label = torch.full((size,), 1.0)
        loss_real = criterion(discriminator(real).view(-1), label)
        loss_real.backward()
        noise = torch.randn(size, 4)
        fake = generator(noise)
        label.fill_(0.0)
        loss_fake = criterion(discriminator(fake.detach()).view(-1), label)
        loss_fake.backward()
        optimizer_d.step()

        generator.zero_grad()
        label.fill_(1.0)
        loss_g = criterion(discriminator(fake).view(-1), label)
        loss_g.backward()
        optimizer_g.step()
    with torch.no_grad():
        samples = generator(fixed_noise)
    print(f"[{epoch}] D {(loss_real + loss_fake).item():.4f} G {loss_g.item():.4f} sample {samples[0].tolist()}")

torch.save({"g": generator.state_dict(), "d": discriminator.state_dict()}, "model.pt")
