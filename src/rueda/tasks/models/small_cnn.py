"""A small CNN that a laptop trains in seconds: three convolutions with pooling and one linear layer."""

from __future__ import annotations

from torch import nn


def small_cnn(
    *,
    in_channels: int = 1,
    image_size: int = 28,
    num_classes: int = 10,
    width: int = 16,
    batch_norm: bool = False,
    dropout: float = 0.0,
) -> nn.Module:
    """Build conv(width) - pool - conv(2 width) - pool - conv(2 width) - pool - linear, each convolution 3x3 with ReLU.

    Args:
        in_channels: 1 for grey images, 3 for colour.
        image_size: height and width of the images.
        num_classes: number of classes.
        width: channels of the first convolution; the cost grows with its square.
        batch_norm: normalise after each convolution.
        dropout: probability of dropping a feature before the linear layer.

    >>> sum(parameter.numel() for parameter in small_cnn().parameters())
    16938
    """
    layers: list[nn.Module] = []
    channels, size = in_channels, image_size
    for wide in (width, 2 * width, 2 * width):
        layers.append(nn.Conv2d(channels, wide, 3, padding=1, bias=not batch_norm))
        if batch_norm:
            layers.append(nn.BatchNorm2d(wide))
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
        channels, size = wide, size // 2
    layers.append(nn.Flatten())
    if dropout > 0:
        layers.append(nn.Dropout(dropout))
    layers.append(nn.Linear(channels * size * size, num_classes))
    return nn.Sequential(*layers)
