"""Train a small ResNet on folders of images, one for each class: python prepare.py, then this script."""

import argparse
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Folder(Dataset):
    """Images in folders, which are their classes."""

    def __init__(self, root, transform):
        classes = sorted(folder.name for folder in Path(root).iterdir())
        self.files = [(file, n) for n, name in enumerate(classes) for file in sorted(Path(root, name).glob("*.png"))]
        self.num_classes, self.transform = len(classes), transform

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        file, label = self.files[index]
        with Image.open(file) as image:
            return self.transform(image.convert("RGB")), label


class RandomCrop:
    """Cut out a random part of the image, resize it to a square, and flip it half of the time."""

    def __init__(self, size, scale=0.5):
        self.size, self.scale = size, scale

    def __call__(self, image):
        """Draw a view of the image."""
        side = min(image.size) * random.uniform(self.scale, 1) ** 0.5
        left, top = random.uniform(0, image.width - side), random.uniform(0, image.height - side)
        image = image.resize((self.size, self.size), Image.BILINEAR, box=(left, top, left + side, top + side))
        return normalise(image.transpose(Image.FLIP_LEFT_RIGHT) if random.random() < 0.5 else image)


class CentreCrop:
    """Cut out the square in the middle, and resize it."""

    def __init__(self, size):
        self.size = size

    def __call__(self, image):
        """Return the middle."""
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        return normalise(image.resize((self.size, self.size), box=(left, top, left + side, top + side)))


def normalise(image):
    """Return the pixels as a tensor with mean 0 and deviation 1, about."""
    return (torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255 - 0.45) / 0.25


class BasicBlock(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        """Add the shortcut to what the convolutions compute."""
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


def resnet(num_classes, width):
    """Build a ResNet of three blocks."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        BasicBlock(width, width, 1), BasicBlock(width, 2 * width, 2), BasicBlock(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, num_classes),
    )  # fmt: skip


def train_one_epoch(model, loader, optimizer, device):
    """Update the model with each batch."""
    model.train()
    for images, labels in loader:
        loss = F.cross_entropy(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def evaluate(model, loader, device):
    """Return sums over all images: of losses, of top-1 and top-5 hits, and of 1."""
    model.eval()
    totals = torch.zeros(4, device=device)
    for images, labels in loader:
        outputs, labels = model(images.to(device)), labels.to(device)
        losses = F.cross_entropy(outputs, labels, reduction="none")
        hits = outputs.topk(5).indices == labels[:, None]
        totals += torch.stack([losses, hits[:, 0], hits.any(1), torch.ones_like(losses)]).sum(1)
    return totals


def main():
    """Train and evaluate."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="images")
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--lr-step", type=int, default=4)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--weight-decay", type=float, default=1e-4)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_set = Folder(Path(args.data, "train"), RandomCrop(args.size))
    val_set = Folder(Path(args.data, "val"), CentreCrop(args.size))
    train_loader = DataLoader(train_set, args.batch_size, shuffle=True, drop_last=True, num_workers=args.workers)
    val_loader = DataLoader(val_set, args.batch_size, num_workers=args.workers)

    model = resnet(train_set.num_classes, args.width).to(device)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, args.momentum, weight_decay=args.weight_decay)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, args.lr_step)
    for epoch in range(args.epochs):
        train_one_epoch(model, train_loader, optimizer, device)
        scheduler.step()
        loss, top1, top5, count = evaluate(model, val_loader, device).tolist()
        print(f"epoch {epoch}: loss {loss / count:.3f} top1 {top1 / count:.1%} top5 {top5 / count:.1%}")
    torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
