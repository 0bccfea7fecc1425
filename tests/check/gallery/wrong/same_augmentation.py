"""A CNN with random crops and flips under DDP. One seed on every rank: all ranks crop and flip alike."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class AugmentedImages(Dataset):
    def __init__(self, count=160):
        generator = torch.Generator().manual_seed(2)
        self.images = torch.randn(count, 3, 8, 8, generator=generator)
        self.labels = torch.randint(0, 4, (count,), generator=generator)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = F.pad(self.images[index], (2, 2, 2, 2))
        top, left = torch.randint(0, 5, (2,)).tolist()
        image = image[:, top : top + 8, left : left + 8]
        if torch.rand(1).item() < 0.5:
            image = image.flip(-1)
        return image, self.labels[index]


class SmallNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(F.relu(self.conv(x)).mean(dim=(2, 3)))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    dataset = AugmentedImages()
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=32 // dist.get_world_size(), sampler=sampler)  # wrong: same-randomness
    model = DDP(SmallNet())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
