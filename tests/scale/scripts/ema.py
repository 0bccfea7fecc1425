"""An exponential moving average of the weights, in a copy of the model."""

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class EMA:
    def __init__(self, model, decay):
        self.module = copy.deepcopy(model).eval()
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for average, parameter in zip(self.module.parameters(), model.parameters()):
            average.mul_(self.decay).add_(parameter, alpha=1 - self.decay)


torch.manual_seed(7)
x, y = torch.randn(40, 4), torch.randint(0, 3, (40,))
loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
ema = EMA(model, 0.9)
optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01, eps=1e-4)
for _ in range(3):
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        ema.update(model)
torch.save({"model": model.state_dict(), "ema": ema.module.state_dict()}, "model.pt")
