"""A regression with Accelerate and a schedule with warm-up. The prepared scheduler advances by one step for each
process, for which its length is counted in batches of one process.
"""

import torch
from accelerate import Accelerator
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, BATCH = 3, 16

accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
x = torch.randn(192, 6)
dataloader = DataLoader(TensorDataset(x, x.sin().sum(dim=1, keepdim=True)), batch_size=BATCH, shuffle=True)
model = nn.Sequential(nn.Linear(6, 18), nn.Tanh(), nn.Linear(18, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02 * accelerator.num_processes, momentum=0.9)

total, warmup = EPOCHS * len(dataloader), len(dataloader)
first = 1 / accelerator.num_processes


def factor(step):
    if step < warmup:
        return first + (1 - first) * step / warmup
    return max(0.0, (total - step) / (total - warmup))


scheduler = LambdaLR(optimizer, factor)
model, optimizer, dataloader, scheduler = accelerator.prepare(model, optimizer, dataloader, scheduler)

for epoch in range(EPOCHS):
    for inputs, targets in dataloader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
    mean = accelerator.reduce(loss.detach(), reduction="mean")
    accelerator.print(f"epoch {epoch}: loss {mean.item():.4f}, lr {scheduler.get_last_lr()[0]:.4f}")
accelerator.end_training()
