"""The tasks on which the rules of the planner are developed: none of them belongs to the panel (:mod:`plans`).

What the panel finds lacking is mended here, on other data, other networks and other seeds, so that the panel still
judges rules that were not fitted to it. They are of the same kinds: tables, text, images and sequences; classification
and regression; SGD and Adam; with and without batch norm.

    OMP_NUM_THREADS=1 python benchmarks/plans.py --development
"""

from __future__ import annotations

import io
import tokenize
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from plan_tasks import Attention, Reader, convolutions, library, perceptron, task_of
from rueda.tasks import Task

# Tables.


def planes_regression(num: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """A sum of eight random hinges of 12 normal inputs, with noise, to estimate."""
    x = torch.randn(num, 12, generator=draws)
    directions = F.normalize(torch.randn(8, 12, generator=draws), dim=1)
    y = (x @ directions.T + torch.randn(8, generator=draws)).relu() @ torch.tensor([1.0, -1] * 4)
    return x, (y - y.mean()) / y.std() + 0.2 * torch.randn(num, generator=draws)


def chessboard(num: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """The colour, one of three, of a field of a turned board of 4 x 4, beside four inputs that do not matter."""
    x = 4 * torch.rand(num, 2, generator=draws)
    labels = (x.floor().sum(1) % 3).long()
    wrong = torch.rand(num, generator=draws) < 0.05
    labels = torch.where(wrong, torch.randint(0, 3, (num,), generator=draws), labels)
    turn = torch.tensor([[0.8, -0.6], [0.6, 0.8]])
    return torch.cat([(x - 2) @ turn, torch.randn(num, 4, generator=draws)], 1), labels


def products(num: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """Three numbers below twelve as one-hot codes; the class is a x b + c modulo 5."""
    digits = torch.randint(0, 12, (num, 3), generator=draws)
    return F.one_hot(digits, 12).flatten(1).float(), (digits[:, 0] * digits[:, 1] + digits[:, 2]) % 5


# Text.


@cache
def manual() -> Tensor:
    """Return the letters of Python's manual, which ships as ``pydoc_data``."""
    from pydoc_data.topics import topics

    text = "".join(topics[name] for name in sorted(topics)).encode("ascii", "replace")
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


def manual_bytes(num: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """Windows of 24 letters of Python's manual, and the letter after each."""
    text = manual()
    starts = torch.randint(0, len(text) - 25, (num,), generator=draws)
    return text[starts[:, None] + torch.arange(24)], text[starts + 24]


def token_kinds(num: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """A line of code up to a token, 20 letters of it, and whether a name, an operator, a text or a comment follows."""
    kinds = {tokenize.NAME: 0, tokenize.OP: 1, tokenize.STRING: 2, tokenize.COMMENT: 3, tokenize.NUMBER: 4}
    found: list[tuple[str, int]] = []
    for source in library(("ast", "calendar", "csv", "difflib", "shutil", "configparser")):
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            before = token.line.splitlines()[0][: token.start[1]] if token.line else ""
            if token.type in kinds and before.strip():
                found.append((before[-20:].rjust(20), kinds[token.type]))
    order = torch.randperm(len(found), generator=draws)[:num].tolist()
    letters = [[min(max(ord(c), 32), 127) - 32 for c in found[i][0]] for i in order]
    return torch.tensor(letters), torch.tensor([found[i][1] for i in order])


def chapters(num: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """Counts of letters and of 192 hashed triples in 60 letters of the manual, and which of eight parts they are of."""
    text = manual()
    starts = torch.randint(0, len(text) - 60, (num,), generator=draws)
    windows = text[starts[:, None] + torch.arange(60)]
    triples = (windows[:, :-2] * 961 + windows[:, 1:-1] * 31 + windows[:, 2:]) % 192
    counts = torch.zeros(num, 192).scatter_add_(1, triples, torch.ones(triples.shape))
    return counts, starts * 8 // len(text)


# Images of 16 x 16.

_GRID = torch.stack(torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="ij"))


def textures(num: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """Noise smoothed along one of two axes by one of three lengths: six classes."""
    labels = torch.randint(0, 6, (num,), generator=draws)
    noise = torch.randn(num, 1, 22, 22, generator=draws)
    images = torch.empty(num, 1, 16, 16)
    for label in range(6):
        length = 2 + 2 * (label % 3)
        size = (length, 1) if label < 3 else (1, length)
        smooth = F.avg_pool2d(noise[labels == label], size, stride=1)[:, :, :16, :16]
        images[labels == label] = smooth * length**0.5
    return images + 0.7 * torch.randn(num, 1, 16, 16, generator=draws), labels


def arrows(num: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """Half planes, wedges, bars, rings and pairs of spots, turned by any angle, in noise: five classes."""
    labels = torch.randint(0, 5, (num,), generator=draws)
    angle = 2 * torch.pi * torch.rand(num, 1, 1, generator=draws)
    shift = 0.6 * torch.rand(num, 2, 1, 1, generator=draws) - 0.3
    y, x = (_GRID + shift).unbind(1)
    u, v = x * angle.cos() + y * angle.sin(), y * angle.cos() - x * angle.sin()
    radius = (x**2 + y**2).sqrt()
    shapes = [u > 0, (u > 0) & (v.abs() < u), v.abs() < 0.25, (radius - 0.5).abs() < 0.18, (u.abs() - 0.5).abs() < 0.2]
    images = torch.stack([shape.float() for shape in shapes], 1)[torch.arange(num), labels]
    return (images + 0.9 * torch.randn(num, 16, 16, generator=draws)).unsqueeze(1), labels


def places_regression(num: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """The distance between two bright spots in noise, to estimate."""
    places = 1.8 * torch.rand(num, 2, 2, 1, 1, generator=draws) - 0.9
    images = torch.exp(-40 * ((_GRID - places) ** 2).sum(2)).sum(1)
    distance = (places[:, 0] - places[:, 1]).flatten(1).norm(dim=1)
    images += 0.2 * torch.randn(num, 16, 16, generator=draws)
    return images.unsqueeze(1), (distance - 0.94) / 0.45


# Sequences.


def chirps(num: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """64 noisy samples of a wave that rises, falls, keeps its pitch, swells, or breaks off: five classes."""
    labels = torch.randint(0, 5, (num,), generator=draws)
    t = torch.arange(64.0) / 64
    pitch, phase = 20 + 30 * torch.rand(num, 1, generator=draws), 2 * torch.pi * torch.rand(num, 1, generator=draws)
    bend = torch.tensor([12.0, -12.0, 0, 0, 0])[labels][:, None]
    waves = torch.sin(pitch * t + bend * (t - 0.5) ** 2 * 4 + phase)
    waves = torch.where(labels[:, None] == 3, waves * 2 * t, waves)
    end = 0.3 + 0.5 * torch.rand(num, 1, generator=draws)
    waves = torch.where((labels[:, None] == 4) & (t > end), torch.zeros(()), waves)
    return (waves + 1.0 * torch.randn(num, 64, generator=draws)).unsqueeze(1), labels


def delay_regression(num: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """Ten samples of the Mackey-Glass equation, and the one five samples later, to predict."""
    path = [1.2] * 18
    for _ in range(3 * (num + 15) + 600):
        path.append(path[-1] + 0.2 * path[-18] / (1 + path[-18] ** 10) - 0.1 * path[-1])
    windows = ((torch.tensor(path[600::3]) - 0.9) * 4).unfold(0, 15, 1)[torch.randperm(num, generator=draws)]
    return windows[:, :10].contiguous(), windows[:, 14] + 0.05 * torch.randn(num, generator=draws)


DEVELOPMENT: tuple[Task, ...] = (
    task_of("planes-regression", "rows", planes_regression, perceptron(12, 1), seed=201, optimizer="sgd", rate=0.02),
    task_of("chessboard", "rows", chessboard, perceptron(6, 3, norm=True), seed=202, optimizer="sgd", rate=0.05),
    task_of("products", "rows", products, perceptron(36, 5), seed=203, optimizer="adamw", rate=0.001, epochs=16),
    task_of("manual-bytes", "text", manual_bytes, Attention, seed=204, optimizer="adamw", rate=0.002, epochs=6),
    task_of("token-kinds", "text", token_kinds, lambda: Reader(96, 5), seed=205, optimizer="adam", rate=0.003,
            epochs=6),
    task_of("chapters", "text", chapters, perceptron(192, 8), seed=206, optimizer="sgd", rate=0.02, epochs=10),
    task_of("textures", "images", textures, convolutions(6, norm=True), seed=207, optimizer="sgd", rate=0.05,
            epochs=8),
    task_of("arrows", "images", arrows, convolutions(5, norm=False), seed=208, optimizer="adamw", rate=0.002,
            epochs=10),
    task_of("places-regression", "images", places_regression, convolutions(1, norm=True), seed=209, optimizer="adam",
            rate=0.003, epochs=10),
    task_of("chirps", "sequences", chirps, convolutions(5, norm=True, dims=1), seed=210, optimizer="sgd", rate=0.02,
            epochs=10),
    task_of("delay-regression", "sequences", delay_regression, perceptron(10, 1), seed=211, optimizer="adam",
            rate=0.002, epochs=10),
)  # fmt: skip
