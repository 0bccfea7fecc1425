"""A small CNN on synthetic images with Horovod, as in a lecture: the rate is scaled and warmed up.

Every rank sets the same seed and shuffles the whole data set, so all ranks draw the same batches.
"""

import horovod.torch as hvd
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

hvd.init()
torch.manual_seed(1337)

images = torch.rand(192, 3, 8, 8)
labels = (images.mean(dim=(1, 2, 3)) * 40).long() % 4
train_loader = DataLoader(TensorDataset(images, labels), batch_size=16, shuffle=True)  # wrong: same-batches

model = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(8 * 4 * 4, 4),
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3 * hvd.size())
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)

warmup_steps = len(train_loader)


def adjust_learning_rate(step):
    progress = min(1.0, (step + 1) / warmup_steps)
    for group in optimizer.param_groups:
        group["lr"] = 1e-3 * (1 + progress * (hvd.size() - 1))


step = 0
for epoch in range(3):
    for data, target in train_loader:
        adjust_learning_rate(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()
        step += 1
    if hvd.rank() == 0:
        print(f"Epoch {epoch + 1}: loss {loss.item():.4f}")
