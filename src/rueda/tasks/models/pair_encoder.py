"""An encoder for contrastive learning (SimCLR, Chen et al. 2020, arXiv:2002.05709): a network and a projection head."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class PairEncoder(nn.Module):
    """A small CNN whose features a two-layer head projects to vectors of length 1.

    Args:
        in_channels: 1 for grey images, 3 for colour.
        width: channels of the first convolution.
        features: size of the projected vectors.
        batch_norm: normalise after each convolution.
    """

    def __init__(self, *, in_channels: int = 1, width: int = 16, features: int = 32, batch_norm: bool = False) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = in_channels
        for wide in (width, 2 * width, 4 * width):
            layers.append(nn.Conv2d(channels, wide, 3, stride=2, padding=1, bias=not batch_norm))
            layers += [nn.BatchNorm2d(wide), nn.ReLU()] if batch_norm else [nn.ReLU()]
            channels = wide
        self.network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten())
        self.head = nn.Sequential(nn.Linear(16 * channels, 4 * channels), nn.ReLU(), nn.Linear(4 * channels, features))

    def forward(self, images: Tensor) -> Tensor:
        """Map images [B, C, H, W] to unit vectors [B, features]."""
        return F.normalize(self.head(self.network(images)), dim=1)
