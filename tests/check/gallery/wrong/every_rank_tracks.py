"""A classifier with DDP and TensorBoard. Every rank opens a SummaryWriter in the same folder."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from torch.utils.tensorboard import SummaryWriter

dist.init_process_group("gloo")
torch.manual_seed(0)
writer = SummaryWriter("runs/experiment1")  # wrong: every-rank-tracks

x = torch.randn(192, 9)
dataset = TensorDataset(x, x.reshape(-1, 3, 3).sum(dim=2).argmax(dim=1))
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=32 // dist.get_world_size(), sampler=sampler)
model = DDP(nn.Sequential(nn.Linear(9, 27), nn.ReLU(), nn.Linear(27, 3)))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

global_step = 0
for epoch in range(2):
    sampler.set_epoch(epoch)
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        writer.add_scalar("train/loss", loss.item(), global_step)
        global_step += 1
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: {loss.item():.4f}")

writer.close()
dist.destroy_process_group()
