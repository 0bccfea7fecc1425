"""The CIFAR-10 network of a well-known lecture on convergence at scale, layer by layer.

Bottleneck blocks as in He et al., *Deep residual learning for image recognition*, 2015
(arXiv:1512.03385), with biases and Glorot-uniform weights as in Keras::

    pad 3, conv 7x7/2 64, [BN], ReLU, max-pool 3/2       32x32 -> 16x16 -> 7x7
    block(64, 64, 256, stride 1)                          7x7
    block(128, 128, 512, stride 2)                        4x4
    average-pool 2x2, flatten, linear 10                  2x2 x 512 = 2048
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """A bottleneck block: convolutions 1x1/stride a, 3x3 b, 1x1 c, plus a projection 1x1/stride c, then ReLU."""

    def __init__(self, channels: int, a: int, b: int, c: int, stride: int, batch_norm: bool) -> None:
        super().__init__()
        self.main = nn.Sequential(
            *_convolution(channels, a, 1, stride, batch_norm),
            nn.ReLU(),
            *_convolution(a, b, 3, 1, batch_norm),
            nn.ReLU(),
            *_convolution(b, c, 1, 1, batch_norm),
        )
        self.shortcut = nn.Sequential(*_convolution(channels, c, 1, stride, batch_norm))

    def forward(self, inputs: Tensor) -> Tensor:
        """Add the main path and the shortcut, [B, channels, H, W] -> [B, c, H / s, W / s]."""
        return torch.relu(self.main(inputs) + self.shortcut(inputs))


def lecture_cnn(*, batch_norm: bool = False) -> nn.Module:
    """Build the network, without or with batch norm.

    >>> sum(parameter.numel() for parameter in lecture_cnn().parameters())
    482442
    >>> with_norm = lecture_cnn(batch_norm=True)
    >>> sum(parameter.numel() for parameter in with_norm.parameters())
    486410
    """
    model = nn.Sequential(
        *_convolution(3, 64, 7, 2, batch_norm),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        Block(64, 64, 64, 256, 1, batch_norm),
        Block(256, 128, 128, 512, 2, batch_norm),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(2048, 10),
    )
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model


def _convolution(channels: int, wide: int, size: int, stride: int, batch_norm: bool) -> list[nn.Module]:
    # Keras' batch norm: momentum .99 there is .01 here, eps 1e-3.
    norm = [nn.BatchNorm2d(wide, eps=1e-3, momentum=0.01)] if batch_norm else []
    return [nn.Conv2d(channels, wide, size, stride, padding=size // 2), *norm]
