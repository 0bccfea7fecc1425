"""Contrastive learning with DDP. The temperature belongs to the loss, outside DDP, so each rank learns its own."""

import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class ContrastiveLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, a, b):
        logits = self.logit_scale.exp() * F.normalize(a, dim=1) @ F.normalize(b, dim=1).T
        target = torch.arange(len(a))
        return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2


dist.init_process_group("gloo")
torch.manual_seed(0)
images = torch.randn(144, 20)
captions = images + 0.3 * torch.randn(144, 20)
pairs = TensorDataset(images, captions)
sampler = DistributedSampler(pairs)
loader = DataLoader(pairs, batch_size=48 // dist.get_world_size(), sampler=sampler)

encoder = DDP(nn.Linear(20, 8))
loss_fn = ContrastiveLoss()
optimizer = torch.optim.SGD([*encoder.parameters(), *loss_fn.parameters()], lr=0.05)

for epoch in range(3):
    sampler.set_epoch(epoch)
    for image, caption in loader:
        both = encoder(torch.cat([image, caption]))
        loss = loss_fn(*both.chunk(2))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # wrong: drift
    if dist.get_rank() == 0:
        print(f"epoch {epoch} loss {loss.item():.4f}")
dist.destroy_process_group()
