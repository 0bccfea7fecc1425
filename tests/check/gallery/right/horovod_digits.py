"""Horovod's steps in full: sharded data, the rate scaled and warmed up, dropout by rank, metrics over all examples."""

import horovod.torch as hvd
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, kernel_size=3)
        self.conv2_drop = nn.Dropout2d()
        self.fc1 = nn.Linear(6 * 3 * 3, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv2_drop(self.conv1(x)), 2))
        return F.log_softmax(self.fc1(x.view(-1, 54)), dim=1)


def digits(count, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (count,), generator=generator)
    return TensorDataset(torch.randn(count, 1, 8, 8, generator=generator) + labels.view(-1, 1, 1, 1) / 5, labels)


hvd.init()
torch.manual_seed(42)
train_dataset, test_dataset = digits(192, 0), digits(96, 1)
train_sampler = DistributedSampler(train_dataset, num_replicas=hvd.size(), rank=hvd.rank())
train_loader = DataLoader(train_dataset, batch_size=16, sampler=train_sampler)
test_sampler = DistributedSampler(test_dataset, num_replicas=hvd.size(), rank=hvd.rank(), shuffle=False)
test_loader = DataLoader(test_dataset, batch_size=16, sampler=test_sampler)

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size(), momentum=0.5)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
warmup_steps = 2 * len(train_loader)
scheduler = LambdaLR(optimizer, lambda t: 1 / hvd.size() + (1 - 1 / hvd.size()) * min(1, t / warmup_steps))
torch.manual_seed(1000 + hvd.rank())

for epoch in range(3):
    model.train()
    train_sampler.set_epoch(epoch)
    for data, target in train_loader:
        optimizer.zero_grad()
        F.nll_loss(model(data), target).backward()
        optimizer.step()
        scheduler.step()
    model.eval()
    totals = torch.zeros(2)
    with torch.no_grad():
        for data, target in test_loader:
            totals += torch.tensor([(model(data).argmax(1) == target).sum(), len(target)])
    totals = hvd.allreduce(totals, op=hvd.Sum, name="totals")
    if hvd.rank() == 0:
        print(f"Test set: Accuracy: {100 * totals[0] / totals[1]:.2f}%")
