"""Gradients averaged by hand with Horovod. hvd.allreduce already averages; the result is divided once more."""

import horovod.torch as hvd
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def average_gradients(model):
    for name, p in model.named_parameters():
        p.grad.copy_(hvd.allreduce(p.grad, name=name) / hvd.size())


hvd.init()
torch.manual_seed(0)
x = torch.randn(144, 6)
dataset = TensorDataset(x, x.roll(1, dims=1).mul(x).sum(1, keepdim=True))
sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
loader = DataLoader(dataset, batch_size=24 // hvd.size(), sampler=sampler)

model = nn.Sequential(nn.Linear(6, 12), nn.Softplus(), nn.Linear(12, 1))
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)

for epoch in range(2):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        average_gradients(model)
        optimizer.step()  # wrong: gradients-averaged-twice
    if hvd.rank() == 0:
        print(f"epoch {epoch} loss {loss.item():.4f}")
