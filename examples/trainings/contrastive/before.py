"""Learn features without labels, from two views of each image: python prepare.py, then this script."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class TwoViews(Dataset):
    """Two random views of each image: a part of it, resized, flipped, in other colours."""

    def __init__(self, file):
        self.images = torch.from_numpy(np.load(file))

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index] / 255
        return self.view(image), self.view(image)

    def view(self, image):
        """Draw a view."""
        side = int(torch.randint(16, 33, ()))
        top, left = torch.randint(0, 33 - side, (2,)).tolist()
        part = image[None, :, top : top + side, left : left + side]
        part = F.interpolate(part, size=(32, 32), mode="bilinear")[0]
        part = part.flip(-1) if torch.rand(()) < 0.5 else part
        return part * (0.6 + 0.8 * torch.rand(3, 1, 1)) + 0.2 * torch.randn(3, 1, 1)


class Encoder(nn.Module):
    """A convolutional encoder, and the head that projects its features for the loss."""

    def __init__(self, width=16, features=64, projected=32):
        super().__init__()
        layers = []
        for inputs, outputs in ((3, width), (width, 2 * width), (2 * width, features)):
            layers += [nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        hidden = [nn.Linear(features, features, bias=False), nn.BatchNorm1d(features), nn.ReLU()]
        self.head = nn.Sequential(*hidden, nn.Linear(features, projected))

    def forward(self, images):
        """Return the projections."""
        return self.head(self.body(images))


def nt_xent(first, second, temperature):
    """Compute the loss of 2B views, each of which has to find the other view of its image among all others."""
    z = F.normalize(torch.cat([first, second]))
    similarity = z @ z.T / temperature
    similarity.fill_diagonal_(float("-inf"))
    partners = torch.arange(len(z), device=z.device).roll(len(first))
    return F.cross_entropy(similarity, partners)


parser = argparse.ArgumentParser()
parser.add_argument("--data", default="images.npy")
parser.add_argument("--batch-size", type=int, default=48)
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--lr", type=float, default=3e-3)
parser.add_argument("--weight-decay", type=float, default=1e-4)
parser.add_argument("--temperature", type=float, default=0.2)
args = parser.parse_args()

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
loader = DataLoader(TwoViews(args.data), args.batch_size, shuffle=True, drop_last=True)
model = Encoder().to(device)
optimizer = torch.optim.AdamW(model.parameters(), args.lr, weight_decay=args.weight_decay)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(loader))

for epoch in range(args.epochs):
    total = 0.0
    for first, second in loader:
        first, second = model(torch.cat([first, second]).to(device)).chunk(2)
        loss = nt_xent(first, second, args.temperature)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        total += loss.detach()
    print(f"epoch {epoch}: loss {total / len(loader):.4f}")

torch.save(model.body.state_dict(), "encoder.pt")
