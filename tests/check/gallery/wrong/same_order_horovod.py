"""A tabular classifier with Horovod, the rate scaled and warmed up. set_epoch of the sampler is forgotten."""

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from torch.utils.data.distributed import DistributedSampler

hvd.init()
torch.manual_seed(42)

x = torch.randn(192, 10)
y = (x[:, :2].prod(dim=1) > 0).long()
train_dataset = torch.utils.data.TensorDataset(x, y)
train_sampler = DistributedSampler(train_dataset, num_replicas=hvd.size(), rank=hvd.rank())
train_loader = torch.utils.data.DataLoader(  # wrong: same-order
    train_dataset, batch_size=16, sampler=train_sampler
)

model = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size(), momentum=0.5)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1 / hvd.size(), total_iters=2 * len(train_loader))

for epoch in range(3):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()
        warmup.step()
        if batch_idx % 3 == 0 and hvd.rank() == 0:
            print(f"Train Epoch: {epoch} [{batch_idx * len(data)}/{len(train_sampler)}]\tLoss: {loss.item():.6f}")
