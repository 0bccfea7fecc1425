"""A classifier with Accelerate. The loader is not passed to prepare: with one seed, all ranks draw the same batches."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

set_seed(42)
accelerator = Accelerator(cpu=True)
x = torch.randn(192, 8)
train_set = TensorDataset(x, x[:, :3].argmax(dim=1))
batch_size = 48 // accelerator.num_processes
train_loader = DataLoader(train_set, batch_size=batch_size, shuffle=True)  # wrong: same-batches

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer = accelerator.prepare(model, optimizer)

for epoch in range(2):
    model.train()
    for inputs, labels in train_loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        accelerator.backward(loss)
        optimizer.step()
    accelerator.print(f"epoch {epoch}: loss {loss.item():.4f}")
accelerator.end_training()
