"""The multi-layer perceptron, for tables of numbers and categories."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class TablePerceptron(nn.Module):
    """Embeds the categories of a row, joins them with its numbers, and applies a perceptron.

    Args:
        num_numbers: columns of numbers, already of similar scale.
        categories: number of values of each categorical column.
        outputs: number of classes; 0 for a regression, whose output is one number for each row.
        width: width of the hidden layers.
        num_layers: number of hidden layers.
        batch_norm: normalise after each hidden layer.
    """

    def __init__(
        self,
        *,
        num_numbers: int = 12,
        categories: tuple[int, ...] = (8, 20, 5),
        outputs: int = 0,
        width: int = 64,
        num_layers: int = 2,
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        sizes = [min(8, (count + 1) // 2) for count in categories]
        self.embeddings = nn.ModuleList(
            nn.Embedding(count, size) for count, size in zip(categories, sizes, strict=True)
        )
        layers: list[nn.Module] = []
        incoming = num_numbers + sum(sizes)
        for _ in range(num_layers):
            layers.append(nn.Linear(incoming, width, bias=not batch_norm))
            layers += [nn.BatchNorm1d(width), nn.ReLU()] if batch_norm else [nn.ReLU()]
            incoming = width
        self.layers = nn.Sequential(*layers, nn.Linear(incoming, max(1, outputs)))
        self.is_regression = outputs == 0

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        """Map numbers [B, n] and categories [B, c] to logits [B, classes], or to predictions [B]."""
        embedded = [embed(categories[:, place]) for place, embed in enumerate(self.embeddings)]
        outputs: Tensor = self.layers(torch.cat([numbers, *embedded], dim=1))
        return outputs.squeeze(1) if self.is_regression else outputs
