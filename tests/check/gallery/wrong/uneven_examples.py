"""A slow and a fast machine with DDP: rank 0 takes twice the examples of the others in each step. DDP still gives
the mean loss of every rank the same weight.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Subset, TensorDataset

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(192, 6)
dataset = TensorDataset(x, x.abs().argmax(dim=1))

shares = [2] + [1] * (world_size - 1)
unit = len(dataset) // sum(shares)
begin = unit * sum(shares[:rank])
mine = Subset(dataset, range(begin, begin + unit * shares[rank]))
loader = DataLoader(mine, batch_size=48 // sum(shares) * shares[rank], shuffle=True)

model = DDP(nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 6)))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
criterion = nn.CrossEntropyLoss()

for epoch in range(2):
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        loss.backward()
        optimizer.step()  # wrong: uneven-mean
    if rank == 0:
        print(f"epoch {epoch} loss {loss.item():.4f}")

dist.destroy_process_group()
