"""A Wide ResNet for 28x28 images, after Zagoruyko and Komodakis, 2016 (arXiv:1605.07146).

Convolution 3x3 to 16 channels, then pairs of residual blocks of 16k, 32k and 64k channels, max-pooling by 2 between the
stages, ReLU after the sum, dropout .01, average over the last 7x7, linear. k = 10 gives 17.1 M parameters; use
k = 1 or 2 on a laptop.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class WideBlock(nn.Module):
    """A residual block: convolution, norm, ReLU, dropout, convolution, norm, plus the shortcut, then ReLU."""

    def __init__(self, channels: int, wide: int, dropout: float) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(channels, wide, 3, padding=1, bias=False),
            nn.BatchNorm2d(wide),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Conv2d(wide, wide, 3, padding=1, bias=False),
            nn.BatchNorm2d(wide),
        )
        self.shortcut: nn.Module = nn.Identity() if channels == wide else nn.Conv2d(channels, wide, 1, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [B, channels, H, W] to [B, wide, H, W]."""
        return torch.relu(self.main(inputs) + self.shortcut(inputs))


def wide_resnet(*, width: int = 10, in_channels: int = 1, num_classes: int = 10, dropout: float = 0.01) -> nn.Module:
    """Build the network; ``width`` is the k of the paper.

    >>> round(sum(parameter.numel() for parameter in wide_resnet().parameters()) / 1e6, 1)
    17.1
    """
    layers: list[nn.Module] = [nn.Conv2d(in_channels, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    channels = 16
    for stage, wide in enumerate((16 * width, 32 * width, 64 * width)):
        if stage > 0:
            layers.append(nn.MaxPool2d(2))
        layers += [WideBlock(channels, wide, dropout), WideBlock(wide, wide, dropout)]
        channels = wide
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes)]
    return nn.Sequential(*layers)
