"""Horovod with backward_passes_per_step: two micro-batches for each step, all-reduced once."""

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

PASSES = 2

hvd.init()
torch.manual_seed(0)
x = torch.randn(192, 5)
dataset = TensorDataset(x, x.amax(dim=1, keepdim=True))
sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
loader = DataLoader(dataset, batch_size=24 // hvd.size() // PASSES, sampler=sampler)
model = nn.Sequential(nn.Linear(5, 15), nn.ReLU(), nn.Linear(15, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(
    optimizer, named_parameters=model.named_parameters(), backward_passes_per_step=PASSES
)

for epoch in range(2):
    sampler.set_epoch(epoch)
    for i, (inputs, targets) in enumerate(loader):
        loss = nn.functional.mse_loss(model(inputs), targets)
        (loss / PASSES).backward()
        if i % PASSES == PASSES - 1:
            optimizer.step()
            optimizer.zero_grad()
    mean = hvd.allreduce(loss.detach(), name="loss")
    if hvd.rank() == 0:
        print(f"epoch {epoch}: {mean.item():.4f}")
