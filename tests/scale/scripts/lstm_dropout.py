"""An LSTM whose dropout between its layers is drawn within one operation."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(40, 6, 4)
loader = DataLoader(TensorDataset(x, x[:, -1, :1]), batch_size=8, shuffle=True)
lstm, head = nn.LSTM(4, 8, num_layers=2, dropout=0.5, batch_first=True), nn.Linear(8, 1)
optimizer = torch.optim.Adam([*lstm.parameters(), *head.parameters()], lr=0.01)
for _ in range(3):
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(head(lstm(inputs)[0][:, -1]), targets).backward()
        optimizer.step()
torch.save({"lstm": lstm.state_dict(), "head": head.state_dict()}, "model.pt")
