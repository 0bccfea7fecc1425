"""A CNN whose data set crops and flips each image at random, with the generators of Python, NumPy and torch."""

import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

random.seed(0)
np.random.seed(0)
torch.manual_seed(0)


class Images(Dataset):
    def __init__(self, train):
        generator = torch.Generator().manual_seed(5)
        self.images = torch.randn(50, 3, 8, 8, generator=generator)
        self.labels = torch.randint(0, 4, (50,), generator=generator)
        self.train = train

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        if self.train:
            image = F.pad(image, (1, 1, 1, 1))
            top, left = random.randint(0, 2), np.random.randint(0, 3)
            image = image[:, top : top + 8, left : left + 8]
            if torch.rand(1) < 0.5:
                image = image.flip(-1)
        return image, self.labels[index]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
        self.drop = nn.Dropout2d(0.2)
        self.fc = nn.Linear(8 * 4, 4)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.drop(self.conv2(x))), 2)
        return self.fc(x.flatten(1))


def main():
    model = Net()
    loader = DataLoader(Images(train=True), batch_size=12, shuffle=True, drop_last=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=3 * len(loader))
    for _ in range(3):
        model.train()
        for images, labels in loader:
            loss = F.cross_entropy(model(images), labels, label_smoothing=0.1)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            scheduler.step()
    torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
