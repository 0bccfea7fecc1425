"""A CNN under DDP that looks at the first batch of its test data before it trains, and at a few test batches later."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def make(count, seed):
    images = torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(images, (images.mean(dim=(1, 2, 3)) > 0.5).long())


dist.init_process_group("gloo")
torch.manual_seed(1)
train_set, test_set = make(192, 1), make(48, 2)
sampler = DistributedSampler(train_set)
train_loader = DataLoader(train_set, batch_size=24 // dist.get_world_size(), sampler=sampler)
test_loader = DataLoader(test_set, batch_size=12)

_, (example_images, example_labels) = next(enumerate(test_loader))
channels = example_images.shape[1]
model = DistributedDataParallel(nn.Sequential(nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

for epoch in range(2):
    sampler.set_epoch(epoch)
    for images, labels in train_loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    with torch.no_grad():
        for number, (images, labels) in enumerate(test_loader):
            accuracy = (model(images).argmax(1) == labels).float().mean().item()
            if number == 1:
                break
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: {accuracy:.2f} of the second test batch")
dist.destroy_process_group()
