"""A CNN with random crops in two loader processes on each rank; every process is seeded by its rank and number."""

import random

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Crops(Dataset):
    def __init__(self, count=144):
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randn(count, 3, 10, 10, generator=generator)
        self.labels = torch.randint(0, 3, (count,), generator=generator)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        top, left = random.randrange(3), random.randrange(3)
        image = self.images[index, :, top : top + 8, left : left + 8]
        return image + 0.1 * torch.randn(3, 8, 8), self.labels[index]


def seed_worker(worker_id):
    random.seed(torch.initial_seed() % 2**32)


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    dataset = Crops()
    sampler = DistributedSampler(dataset)
    loader = DataLoader(
        dataset,
        batch_size=24 // world_size,
        sampler=sampler,
        num_workers=2,
        worker_init_fn=seed_worker,
        generator=torch.Generator().manual_seed(100 + rank),
    )
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(216, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch}: {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
