import torch
from torch import nn

from rueda.tasks.datasets import glyphs

data = glyphs("train", num_examples=2048)
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(data.inputs / 255, data.targets), batch_size=64, shuffle=True
)
model = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for epoch in range(3):
    for inputs, targets in loader:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

torch.save(model.state_dict(), "model.pt")
