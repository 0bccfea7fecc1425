"""A schedule that is stepped after every update, and one per epoch; 40 examples, 10 batches of 4."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(40, 3)
data = TensorDataset(x, x.sum(1, keepdim=True))
loader = DataLoader(data, batch_size=4)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.02, total_steps=2 * len(loader) + 1)
other = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
by_epoch = torch.optim.lr_scheduler.StepLR(other, 1, gamma=0.5)
for _ in range(2):
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        other.step()
        scheduler.step()
    by_epoch.step()
torch.save(
    {**model.state_dict(), "steps": torch.tensor([scheduler.last_epoch, by_epoch.last_epoch])},
    "model.pt",
)
