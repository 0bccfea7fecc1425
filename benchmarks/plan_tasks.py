"""The tasks of the panel (:mod:`plans`): generated data, or data that ship with Python, and a plain recipe for each.

None was used to choose the rules of the planner; what was lost in their first use was mended on other tasks
(:mod:`plan_development`), and six new ones joined them for the second (:mod:`plan_new_tasks`). The recipes are what one
would try first: a batch of 32, SGD with momentum at a rate of 0.02 or 0.05, or Adam at 0.001 to 0.003.
"""

from __future__ import annotations

import io
import itertools
import tokenize
import unicodedata
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rueda.data import Arrays
from rueda.records import Recipe
from rueda.tasks import Task
from rueda.tasks.task import squared_error

Make = Callable[[int, torch.Generator], tuple[Tensor, Tensor]]


def task_of(
    name: str, unit: str, make: Make, model: Callable[[], nn.Module], *, num: tuple[int, int] = (4096, 1024),
    seed: int | None = None, **recipe: Any,
) -> Task:  # fmt: skip
    """Return a task whose data are made from a seed, by default the length of its name; regressions are named so."""

    @cache
    def data() -> tuple[Arrays, Arrays]:
        inputs, targets = make(sum(num), torch.Generator().manual_seed(len(name) if seed is None else seed))
        return Arrays(inputs[: num[0]], targets[: num[0]]), Arrays(inputs[num[0] :], targets[num[0] :])

    values: dict[str, Any] = {"batch": 32, "epochs": 12, **recipe}
    more: dict[str, Any] = {"loss": squared_error, "metric": None} if name.endswith("regression") else {}
    return Task(
        name=name, unit=unit, model=model, train=lambda: data()[0], test=lambda: data()[1], recipe=Recipe(**values),
        **more,
    )  # fmt: skip


def perceptron(inputs: int, outputs: int, *, width: int = 64, norm: bool = False) -> Callable[[], nn.Module]:
    """Return a factory of a perceptron with two hidden layers."""

    def hidden(before: int) -> list[nn.Module]:
        return [nn.Linear(before, width), *([nn.BatchNorm1d(width)] if norm else []), nn.ReLU()]

    def build() -> nn.Module:
        last = [nn.Flatten(0)] if outputs == 1 else []
        return nn.Sequential(nn.Flatten(), *hidden(inputs), *hidden(width), nn.Linear(width, outputs), *last)

    return build


def convolutions(outputs: int, *, norm: bool, dims: int = 2) -> Callable[[], nn.Module]:
    """Return a factory of two convolutions, each with a stride of 2, the mean over positions, and a linear layer."""

    def build() -> nn.Module:
        kind = nn.Conv2d if dims == 2 else nn.Conv1d
        normal = nn.BatchNorm2d if dims == 2 else nn.BatchNorm1d
        layers: list[nn.Module] = []
        for before, after in ((1, 8), (8, 16)):
            layers += [kind(before, after, 3, stride=2, padding=1), *([normal(after)] if norm else []), nn.ReLU()]
        size = 16 * 16  # 16 channels of 4 x 4 pixels, or of 16 samples
        last = [nn.Flatten(0)] if outputs == 1 else []
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(size, outputs), *last)

    return build


# Tables.


def friedman(num: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """Friedman's first function (1991) of 10 uniform inputs, half of which do not matter, with noise."""
    x = torch.rand(num, 10, generator=draws)
    y = 10 * torch.sin(torch.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    return 2 * x - 1, (y - 14.4) / 4.9 + 0.2 * torch.randn(num, generator=draws)


def rings(num: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """The shell, one of four, on which a point of a space of 8 dimensions lies, blurred, with a tenth wrong labels."""
    labels = torch.randint(0, 4, (num,), generator=draws)
    directions = F.normalize(torch.randn(num, 8, generator=draws), dim=1)
    points = directions * (1 + labels[:, None]) + 0.12 * torch.randn(num, 8, generator=draws)
    wrong = torch.rand(num, generator=draws) < 0.1
    return points, torch.where(wrong, torch.randint(0, 4, (num,), generator=draws), labels)


def poker(num: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """Hands of five cards as one-hot ranks: nothing, a pair, two pairs or better; by rank alone."""
    cards = torch.stack([torch.randperm(52, generator=draws)[:5] % 13 for _ in range(num)])
    ranks = F.one_hot(cards, 13)  # [num, 5, 13]
    of_a_kind = ranks.sum(1).sort(descending=True).values
    labels = (of_a_kind[:, 0] > 1).long() + ((of_a_kind[:, 1] > 1) | (of_a_kind[:, 0] > 2)).long()
    return ranks.flatten(1).float(), labels


# Text.


@cache
def library(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the sources of some modules of Python's standard library."""
    folder = Path(io.__file__).parent
    return tuple(tokenize.open(folder / f"{name}.py").read() for name in names)


def code_bytes(num: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """Windows of 24 bytes of the standard library's code, and the kind of the byte after each."""
    text = "".join(library(("argparse", "inspect", "typing", "tarfile", "doctest"))).encode()
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long().clamp(max=127)
    starts = torch.randint(0, len(data) - 25, (num,), generator=draws)
    return data[starts[:, None] + torch.arange(24)], data[starts + 24]


def code_origin(num: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """Lines of code as counts of 256 hashed pairs of letters, and the module, one of six, that they come from."""
    sources = library(("argparse", "datetime", "zipfile", "turtle", "smtplib", "statistics"))
    rows, labels = [], []
    for label, source in enumerate(sources[:6]):
        for line in (line.strip() for line in source.splitlines()):
            if len(line) > 25:
                counts = torch.zeros(256)
                for a, b in itertools.pairwise(line):
                    counts[(31 * ord(a) + ord(b)) % 256] += 1
                rows.append(counts)
                labels.append(label)
    order = torch.randperm(len(rows), generator=draws)[:num]
    return torch.stack(rows)[order], torch.tensor(labels)[order]


def unicode_names(num: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """The name of a Unicode character, 24 letters of it, and its general category, one of five."""
    kinds = {"Ll": 0, "Lu": 1, "So": 2, "Sm": 3, "Mn": 4}
    found: list[tuple[str, int]] = []
    for code in range(0x20000):
        name, kind = unicodedata.name(chr(code), ""), kinds.get(unicodedata.category(chr(code)))
        if name and kind is not None:
            found.append((name, kind))
    order = torch.randperm(len(found), generator=draws)[:num].tolist()
    letters = [[min(ord(c), 95) - 32 for c in found[i][0][-24:].rjust(24)] for i in order]
    return torch.tensor(letters), torch.tensor([found[i][1] for i in order])


class Reader(nn.Module):
    """Embeds letters and reads them with a recurrent network; the last state says the class."""

    def __init__(self, letters: int, classes: int) -> None:
        super().__init__()
        self.embedding, self.cells = nn.Embedding(letters, 16), nn.GRU(16, 32, batch_first=True)
        self.out = nn.Linear(32, classes)

    def forward(self, letters: Tensor) -> Tensor:
        """[B, T] -> [B, classes]."""
        states, _ = self.cells(self.embedding(letters))
        out: Tensor = self.out(states[:, -1])
        return out


class Attention(nn.Module):
    """One transformer layer over embedded bytes; the last position says the next byte."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.place = nn.Embedding(128, 32), nn.Parameter(0.1 * torch.randn(24, 32))
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.out = nn.Linear(32, 128)

    def forward(self, letters: Tensor) -> Tensor:
        """[B, 24] -> [B, 128]."""
        out: Tensor = self.out(self.layer(self.embedding(letters) + self.place)[:, -1])
        return out


# Images of 16 x 16.

_GRID = torch.stack(torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij"))


def shapes(num: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """Outlines of discs, squares, diamonds and crosses of any place and size, in noise."""
    labels = torch.randint(0, 4, (num,), generator=draws)
    centre = 5 + 5 * torch.rand(num, 2, 1, 1, generator=draws)
    size = 2.5 + 2.5 * torch.rand(num, 1, 1, generator=draws)
    dy, dx = (_GRID - centre).abs().unbind(1)
    radius = torch.stack([(dy**2 + dx**2).sqrt(), torch.maximum(dy, dx), dy + dx, 4 * torch.minimum(dy, dx)], 1)
    inside = (radius[torch.arange(num), labels] - size).abs() < 1
    return (inside + 0.5 * torch.randn(num, 16, 16, generator=draws)).unsqueeze(1).float(), labels


def gratings(num: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """Waves in one of eight directions, of any length and phase, in noise."""
    labels = torch.randint(0, 8, (num,), generator=draws)
    angle = labels * torch.pi / 8 + 0.1 * torch.randn(num, generator=draws)
    wave = 0.8 + 0.8 * torch.rand(num, generator=draws)
    phase = 2 * torch.pi * torch.rand(num, 1, 1, generator=draws)
    directions = torch.stack([angle.sin() * wave, angle.cos() * wave], 1)
    images = torch.sin(torch.einsum("nd,dhw->nhw", directions, _GRID) + phase)
    return (images + 0.7 * torch.randn(num, 16, 16, generator=draws)).unsqueeze(1), labels


_SEGMENTS = ("abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abcdfg")
_LINES = {"a": (0, 0, 0, 5), "b": (0, 5, 5, 5), "c": (5, 5, 10, 5), "d": (10, 0, 10, 5), "e": (5, 0, 10, 0),
          "f": (0, 0, 5, 0), "g": (5, 0, 5, 5)}  # fmt: skip


def segment_digits(num: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """Digits of seven segments, moved, some with a segment missing, in noise."""
    labels = torch.randint(0, 10, (num,), generator=draws)
    images = 0.4 * torch.randn(num, 1, 16, 16, generator=draws)
    for image, label in zip(images, labels.tolist(), strict=True):
        top, left = (int(torch.randint(0, most, (), generator=draws)) for most in (5, 10))
        lost = int(torch.randint(0, 21, (), generator=draws))
        for number, segment in enumerate(_SEGMENTS[label]):
            y0, x0, y1, x1 = _LINES[segment]
            if number != lost:
                image[0, top + y0 : top + y1 + 1, left + x0 : left + x1 + 1] += 1.0
    return images, labels


def blobs(num: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """The number of bright spots, 0 to 9, in noise, as a number to estimate."""
    counts = torch.randint(0, 10, (num,), generator=draws)
    images = 0.3 * torch.randn(num, 16, 16, generator=draws)
    places = 1 + 14 * torch.rand(num, 9, 2, 1, 1, generator=draws)
    spots = torch.exp(-((_GRID - places) ** 2).sum(2))  # [num, 9, 16, 16]
    images += (spots * (torch.arange(9) < counts[:, None])[:, :, None, None]).sum(1)
    return images.unsqueeze(1), (counts - 4.5) / 2.9


# Sequences.


def oscillations(num: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """64 noisy samples of a damped oscillation, and its damping, to estimate."""
    damping, speed = 0.02 + 0.08 * torch.rand(num, generator=draws), 0.2 + 0.6 * torch.rand(num, generator=draws)
    phase = 2 * torch.pi * torch.rand(num, generator=draws)
    steps = torch.arange(64.0)
    waves = torch.exp(-damping[:, None] * steps) * torch.sin(speed[:, None] * steps + phase[:, None])
    return (waves + 0.1 * torch.randn(num, 64, generator=draws)).unsqueeze(1), (damping - 0.06) / 0.023


def lorenz(num: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """Eight samples of Lorenz's first coordinate, and the one three samples later, to predict."""
    state, path = torch.tensor([1.0, 1.0, 20.0]), []
    for _ in range(10 * (num + 11) + 500):
        x, y, z = state.tolist()
        state = state + 0.008 * torch.tensor([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z])
        path.append(x)
    series = torch.tensor(path[500::10]) / 8
    windows = series.unfold(0, 11, 1)[torch.randperm(num, generator=draws)]
    return windows[:, :8].contiguous(), windows[:, 10].contiguous()


SGD: dict[str, Any] = {"optimizer": "sgd", "rate": 0.02}
TASKS: tuple[Task, ...] = (
    task_of("friedman-regression", "rows", friedman, perceptron(10, 1), **SGD),
    task_of("rings", "rows", rings, perceptron(8, 4, norm=True), optimizer="sgd", rate=0.05),
    task_of("poker", "rows", poker, perceptron(65, 3), optimizer="adamw", rate=0.001, epochs=16),
    task_of("code-bytes", "text", code_bytes, Attention, optimizer="adamw", rate=0.002, epochs=8),
    task_of("code-origin", "text", code_origin, perceptron(256, 6), **SGD),
    task_of("unicode-names", "text", unicode_names, lambda: Reader(64, 5), optimizer="adam", rate=0.003, epochs=8),
    task_of("shapes", "images", shapes, convolutions(4, norm=True), optimizer="sgd", rate=0.05),
    task_of("gratings", "images", gratings, convolutions(8, norm=False), **SGD),
    task_of("segment-digits", "images", segment_digits, convolutions(10, norm=False), optimizer="adam", rate=0.002),
    task_of("blobs-regression", "images", blobs, convolutions(1, norm=True), optimizer="adam", rate=0.002),
    task_of("oscillations-regression", "sequences", oscillations, convolutions(1, norm=True, dims=1), **SGD),
    task_of("lorenz-regression", "sequences", lorenz, perceptron(8, 1), optimizer="adam", rate=0.002),
)
