"""A Horovod script with a seed for each rank, because of dropout. broadcast_parameters was forgotten."""

import horovod.torch as hvd
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

hvd.init()
x = torch.randn(160, 8, generator=torch.Generator().manual_seed(0))
train_set = TensorDataset(x, x.pow(2).mean(dim=1, keepdim=True))
sampler = DistributedSampler(train_set, num_replicas=hvd.size(), rank=hvd.rank())
loader = DataLoader(train_set, batch_size=32 // hvd.size(), sampler=sampler)

torch.manual_seed(hvd.rank())
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))
optimizer = hvd.DistributedOptimizer(
    torch.optim.Adam(model.parameters(), lr=1e-3), named_parameters=model.named_parameters()
)

for epoch in range(2):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()  # wrong: different-start
    if hvd.rank() == 0:
        print(f"epoch {epoch}: {loss.item():.4f}")
