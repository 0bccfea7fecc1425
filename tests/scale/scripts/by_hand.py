"""No optimizer: the parameters are updated by hand, and the norm of the gradient is printed."""

import torch
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
x = torch.randn(30, 3)
loader = DataLoader(list(zip(x, x.sum(1, keepdim=True))), batch_size=6, shuffle=True)
model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
for _ in range(3):
    for inputs, targets in loader:
        model.zero_grad()
        loss = ((model(inputs) - targets) ** 2).mean() + 1e-3 * sum(p.square().sum() for p in model.parameters())
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
    print(float(torch.stack([p.grad.norm() for p in model.parameters()]).norm()))
torch.save(model.state_dict(), "model.pt")
