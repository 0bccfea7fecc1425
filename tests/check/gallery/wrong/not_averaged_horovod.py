"""A Horovod script that broadcasts the parameters but never wraps its optimizer in hvd.DistributedOptimizer."""

import argparse

import horovod.torch as hvd
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
import torch.utils.data.distributed

parser = argparse.ArgumentParser(description="synthetic digits")
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--seed", type=int, default=42)
args = parser.parse_args()

hvd.init()
torch.manual_seed(args.seed)
images = torch.rand(160, 1, 6, 6)
labels = (images.sum(dim=(1, 2, 3)) > 18).long()
train_dataset = torch.utils.data.TensorDataset(images, labels)
train_sampler = torch.utils.data.distributed.DistributedSampler(train_dataset, num_replicas=hvd.size(), rank=hvd.rank())
train_loader = torch.utils.data.DataLoader(
    train_dataset, batch_size=args.batch_size // hvd.size(), sampler=train_sampler
)

model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=0.5)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)


def train(epoch):
    model.train()
    train_sampler.set_epoch(epoch)
    for data, target in train_loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()  # wrong: gradients-not-averaged
    if hvd.rank() == 0:
        print(f"Train Epoch: {epoch}\tLoss: {loss.item():.6f}")


for epoch in range(1, args.epochs + 1):
    train(epoch)
