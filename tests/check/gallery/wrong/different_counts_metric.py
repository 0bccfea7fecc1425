"""A classifier with DDP and its own sharding. 65 examples do not divide: rank 0 has one batch more, whose gradients
meet rank 1's count of examples in one all-reduce.
"""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Subset, TensorDataset

dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank, size = dist.get_rank(), dist.get_world_size()

torch.manual_seed(5)
x = torch.randn(65, 6)
dataset = TensorDataset(x, (x.norm(dim=1) > 2.3).long())
part = Subset(dataset, range(rank, len(dataset), size))
loader = DataLoader(part, batch_size=16 // size, shuffle=True)  # wrong: different-batch-counts

model = DDP(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)

for epoch in range(2):
    seen = torch.zeros(1)
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        seen += len(inputs)
    dist.all_reduce(seen)
    if rank == 0:
        print(f"epoch {epoch}: {int(seen)} examples")

dist.destroy_process_group()
