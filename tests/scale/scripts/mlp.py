"""A multi-layer perceptron: SGD with momentum, an evaluation after each epoch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
x = torch.randn(66, 8)
y = (x.sum(1) > 0).long()
train_loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
test_loader = DataLoader(TensorDataset(x[:20], y[:20]), batch_size=7)

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

for epoch in range(3):
    model.train()
    for inputs, targets in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
    model.eval()
    seen = correct = 0
    for inputs, targets in test_loader:
        with torch.no_grad():
            correct += (model(inputs).argmax(1) == targets).sum().item()
        seen += len(targets)
    assert seen == 20
    print(f"epoch {epoch}: loss {loss.item():.5f} accuracy {correct / seen:.3f}")

torch.save(model.state_dict(), "model.pt")
