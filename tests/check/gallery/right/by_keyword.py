"""Everything by keyword, warnings are errors, and the loss is compiled by torch.jit."""

import warnings

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

warnings.simplefilter("error")
warnings.filterwarnings("ignore", message=".*torch.jit.*deprecated")

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(192, 10)
dataset = TensorDataset(x, x[:, :3].argmax(dim=1))
sampler = DistributedSampler(dataset=dataset)
loader = DataLoader(dataset=dataset, batch_size=24 // world_size, sampler=sampler)
model = DDP(module=nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3)))
optimizer = torch.optim.SGD(params=model.parameters(), lr=0.05)


@torch.jit.script
def smooth_loss(x, y):
    return F.cross_entropy(x, y, label_smoothing=0.1)


for epoch in range(2):
    sampler.set_epoch(epoch=epoch)
    for inputs, labels in loader:
        outputs = model(inputs)
        loss = 0.5 * F.cross_entropy(input=outputs, target=labels) + 0.5 * smooth_loss(outputs, labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters=model.parameters(), max_norm=1.0)
        optimizer.step(closure=None)
if rank == 0:
    torch.save(obj=model.module.state_dict(), f="model.pt")
dist.destroy_process_group()
