"""Functions whose curvature is known: f(w) = offset + 1/2 (w - c)' H (w - c), spread over examples of uneven weight."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rueda.examine.objective.objective import Objective

DOUBLE = torch.float64


class Quadratic(nn.Module):
    def __init__(self, hessian: Tensor, centre: Tensor, start: Tensor, offset: float = 0.0) -> None:
        super().__init__()
        half = len(start) // 2
        self.first = nn.Parameter(start[:half].clone())  # two tensors: the order of joining counts
        self.second = nn.Parameter(start[half:].clone().reshape(1, -1))
        self.register_buffer("hessian", hessian)
        self.register_buffer("centre", centre)
        self.offset = offset

    def forward(self, weights: Tensor) -> Tensor:
        away = torch.cat([self.first, self.second.flatten()]) - self.centre
        return weights * (self.offset + 0.5 * away @ self.hessian @ away)


def quadratic(
    hessian: Tensor, *, centre: Tensor | None = None, start: Tensor | None = None, offset: float = 0.0,
    num_examples: int = 11, chunk: int = 2,
) -> Objective:  # fmt: skip
    size = len(hessian)
    centre = torch.zeros(size, dtype=hessian.dtype) if centre is None else centre
    start = torch.linspace(-1, 2, size, dtype=hessian.dtype) if start is None else start
    weights = torch.linspace(0.5, 1.5, num_examples, dtype=hessian.dtype)  # their mean is 1
    model = Quadratic(hessian, centre, start, offset)
    return Objective(model, lambda outputs, targets: outputs, weights, weights, chunk=chunk)


def rotated(eigenvalues: Tensor, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Give a symmetric matrix with these eigenvalues, and its eigenvectors as columns."""
    draws = torch.Generator().manual_seed(seed)
    vectors = torch.linalg.qr(torch.randn(len(eigenvalues), len(eigenvalues), generator=draws, dtype=DOUBLE))[0]
    return (vectors * eigenvalues) @ vectors.T, vectors


def spectrum_like_a_network(size: int = 60) -> Tensor:
    """A few large values, a bulk near zero, some of it negative."""
    return torch.cat(
        [torch.tensor([9.0, 5.0, 4.9, 2.0], dtype=DOUBLE), torch.linspace(0.1, -0.2, size - 4, dtype=DOUBLE)]
    )
