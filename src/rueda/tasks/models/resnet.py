"""Residual networks for small images (He et al., 2015, arXiv:1512.03385, section 4.2).

``resnet(8)`` is the CIFAR form: a 3x3 convolution, then three stages of 16, 32 and 64 channels with (depth - 2) / 6
blocks each. ``resnet(18)`` is the four-stage form of 64 to 512 channels with the CIFAR stem, 11.2 M parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rueda.errors import TaskError


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with batch norm, and a shortcut that is a 1x1 convolution where the shape changes."""

    def __init__(self, channels: int, wide: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, wide, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(wide)
        self.conv2 = nn.Conv2d(wide, wide, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(wide)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != wide:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, wide, 1, stride, bias=False), nn.BatchNorm2d(wide))

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [B, channels, H, W] to [B, wide, H / stride, W / stride]."""
        hidden = F.relu(self.norm1(self.conv1(inputs)), inplace=True)
        return torch.relu_(self.norm2(self.conv2(hidden)) + self.shortcut(inputs))


def resnet(depth: int = 8, *, in_channels: int = 3, num_classes: int = 10) -> nn.Module:
    """Build a ResNet: depth 8, 14, 20, 26, ... in the CIFAR form, or 18 in the four-stage form.

    >>> [sum(p.numel() for p in resnet(depth).parameters()) for depth in (8, 18)]
    [78042, 11173962]
    """
    widths: tuple[int, ...]
    if depth == 18:
        widths, blocks = (64, 128, 256, 512), 2
    elif depth >= 8 and (depth - 2) % 6 == 0:
        widths, blocks = (16, 32, 64), (depth - 2) // 6
    else:
        raise TaskError("depth", expected="18, or 6 n + 2 (8, 14, 20, ...)", got=depth, do="choose one")
    channels = widths[0]
    layers: list[nn.Module] = [
        nn.Conv2d(in_channels, channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
    ]
    for stage, wide in enumerate(widths):
        for block in range(blocks):
            layers.append(ResidualBlock(channels, wide, 2 if stage > 0 and block == 0 else 1))
            channels = wide
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes)]
    model = nn.Sequential(*layers)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model
