"""A classifier with Accelerate. Every process writes the weights to one file at the end."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
x = torch.randn(192, 4)
loader = DataLoader(
    TensorDataset(x, (x.prod(dim=1) > 0).long()),
    batch_size=24 // accelerator.num_processes,
    shuffle=True,
)
model = nn.Sequential(nn.Linear(4, 20), nn.ReLU(), nn.Linear(20, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for epoch in range(2):
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        accelerator.backward(loss)
        optimizer.step()
    accelerator.print(f"epoch {epoch}: {loss.item():.4f}")

accelerator.wait_for_everyone()
torch.save(accelerator.unwrap_model(model).state_dict(), "weights.pt")  # wrong: same-file
accelerator.end_training()
