"""Six tasks that join the panel (:mod:`plans`) in its second use: not trained before the rules were frozen.

The twelve tasks of :mod:`plan_tasks` had been looked at when the rules were mended, though the mends were chosen on
:mod:`plan_development`. These six are judged for the first time.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from plan_tasks import Reader, convolutions, library, perceptron, task_of
from rueda.tasks import Task


def orbits_regression(num: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """Place and speed of a planet, with noise; the logarithm of its orbit's energy above -3, to estimate."""
    place, speed = 1.5 * torch.randn(num, 2, generator=draws), torch.randn(num, 2, generator=draws)
    energy = speed.square().sum(1) / 2 - 1 / (0.4 + place.norm(dim=1))
    seen = torch.cat([place, speed], 1) + 0.02 * torch.randn(num, 4, generator=draws)
    return seen, (torch.log(3 + energy) - 1.15) / 0.3


def votes(num: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """21 voters, grouped into three by two others' votes: which of four outcomes their majorities give."""
    x = torch.randint(0, 2, (num, 21), generator=draws).float() * 2 - 1
    shared = x[:, 0] * x[:, 1]
    first = x[:, 2:9].sum(1) + 2 * shared > 0
    second = x[:, 9:21].sum(1) + 2 * torch.randn(num, generator=draws) > 0
    return x, first.long() + 2 * second.long()


def module_reader(num: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """24 letters of the code of one of five modules of the standard library, and which of them."""
    sources = library(("pickle", "threading", "ssl", "fractions", "optparse"))
    labels = torch.randint(0, 5, (num,), generator=draws)
    rows = []
    for label in labels.tolist():
        start = int(torch.randint(0, len(sources[label]) - 24, (), generator=draws))
        rows.append([min(max(ord(c), 31), 126) - 31 for c in sources[label][start : start + 24]])
    return torch.tensor(rows), labels


def quadrants(num: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images of 16 x 16 of noise; one quarter has a fine or a coarse chequered pattern: which, and where."""
    labels = torch.randint(0, 8, (num,), generator=draws)
    images = torch.randn(num, 16, 16, generator=draws)
    rows, columns = torch.meshgrid(torch.arange(8), torch.arange(8), indexing="ij")
    patterns = torch.stack([(rows + columns) % 2, (rows // 2 + columns // 2) % 2]).float() * 2 - 1
    strength = 0.4 + 0.6 * torch.rand(num, generator=draws)
    for image, label, much in zip(images, labels.tolist(), strength.tolist(), strict=True):
        top, left = 8 * (label // 2 % 2), 8 * (label // 4)
        image[top : top + 8, left : left + 8] += much * patterns[label % 2]
    return images.unsqueeze(1), labels


def bars_regression(num: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images of 16 x 16 of a bar in noise; the cosine of twice its angle, to estimate."""
    grid = torch.stack(torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="ij"))
    angle = torch.pi * torch.rand(num, generator=draws)
    shift = 0.5 * torch.rand(num, 2, 1, 1, generator=draws) - 0.25
    y, x = (grid + shift).unbind(1)
    across = (y * angle.cos()[:, None, None] - x * angle.sin()[:, None, None]).abs()
    images = torch.exp(-30 * across**2) + 0.5 * torch.randn(num, 16, 16, generator=draws)
    return images.unsqueeze(1), 1.4 * torch.cos(2 * angle)


def gaits(num: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """64 samples of one of six autoregressive processes of second order, and which of them."""
    labels = torch.randint(0, 6, (num,), generator=draws)
    damping, pitch = 0.6 + 0.25 * (labels % 2), torch.tensor([0.5, 1.1, 1.9])[labels // 2]
    first, second = 2 * damping * pitch.cos(), -(damping**2)
    noise = torch.randn(num, 80, generator=draws)
    waves = [noise[:, 0], noise[:, 1]]
    for step in range(2, 80):
        waves.append(first * waves[-1] + second * waves[-2] + noise[:, step])
    series = torch.stack(waves[16:], 1)
    return F.normalize(series, dim=1).unsqueeze(1) * 8, labels


NEW: tuple[Task, ...] = (
    task_of("orbits-regression", "rows", orbits_regression, perceptron(4, 1), seed=301, optimizer="adamw", rate=0.002),
    task_of("votes", "rows", votes, perceptron(21, 4, norm=True), seed=302, optimizer="sgd", rate=0.02, epochs=10),
    task_of("module-reader", "text", module_reader, lambda: Reader(96, 5), seed=303, optimizer="adamw", rate=0.003,
            epochs=8),
    task_of("quadrants", "images", quadrants, convolutions(8, norm=True), seed=304, optimizer="sgd", rate=0.05,
            epochs=10),
    task_of("bars-regression", "images", bars_regression, convolutions(1, norm=False), seed=305, optimizer="adam",
            rate=0.002),
    task_of("gaits", "sequences", gaits, convolutions(6, norm=False, dims=1), seed=306, optimizer="sgd", rate=0.02),
)  # fmt: skip
