"""Tasks of different kinds, each with batches and a step of its own; all train in a blink, in float64."""

from __future__ import annotations

import atexit
import io
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, IterableDataset

import rueda
from rueda.data import TarFiles
from rueda.records import Recipe
from rueda.tasks import Losses, Phase, Task

WORDS = 11


def random(index: int, *names: int) -> torch.Generator:
    return torch.Generator().manual_seed(1000 * index + sum(names))


class Made(Dataset[Any]):
    """Examples that are made by a function of their index."""

    def __init__(self, make: Callable[[int], Any], num_examples: int = 48) -> None:
        self.make, self.num_examples = make, num_examples

    def __len__(self) -> int:
        return self.num_examples

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def task_of(name: str, make: Callable[[int], Any], model: Callable[..., nn.Module], **options: Any) -> Task:
    return Task(
        name=name, model=model, train=Made(make), test=Made(lambda i: make(i + 500), 13),
        recipe=Recipe(batch=12, epochs=2, rate=0.1, precision="float64"), **options,
    )  # fmt: skip


def vector(index: int, size: int = 6) -> Tensor:
    return torch.randn(size, generator=random(index))


def label(index: int) -> Tensor:
    return torch.tensor(index % 3)


# A language model with sentences of different lengths.


def sentence(index: int) -> Tensor:
    length = 3 + index * 7 % 9
    return torch.randint(1, WORDS, (length,), generator=random(index, 1))


def padded(sentences: list[Tensor]) -> dict[str, Tensor]:
    tokens = nn.utils.rnn.pad_sequence(sentences, batch_first=True)
    return {"tokens": tokens, "mask": tokens > 0}


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.layer, self.head = (
            nn.Embedding(WORDS, 6),
            nn.GRU(6, 8, batch_first=True),
            nn.Linear(8, WORDS),
        )

    def encode(self, tokens: Tensor) -> Tensor:
        hidden: Tensor = self.layer(self.embedding(tokens))[0]
        return hidden

    def forward(self, tokens: Tensor) -> Tensor:
        raise AssertionError("the step calls encode and head")


def language_step(model: Any, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    tokens = batch["tokens"]
    logits = model.head(model.encode(tokens[:, :-1]))
    return F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none"), batch["mask"][:, 1:]


def language() -> Task:
    return task_of("language", sentence, Language, step=language_step, collate=padded, unit="tokens")


# Two and three keys, a tuple of inputs, a dataclass.


def two_keys() -> Task:
    def step(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch["features"]), batch["label"], reduction="none")

    make = lambda i: {"features": vector(i), "label": label(i)}  # noqa: E731
    return task_of("two keys", make, lambda: nn.Linear(6, 3), step=step)


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.kind, self.size = nn.Linear(6, 5), nn.Linear(5, 3), nn.Linear(5, 1)

    def forward(self, features: Tensor) -> dict[str, Tensor]:
        hidden = torch.tanh(self.body(features))
        return {"kind": self.kind(hidden), "size": self.size(hidden)[:, 0]}


def several_heads() -> Task:
    def step(model: nn.Module, batch: dict[str, Tensor]) -> Losses:
        outputs = model(batch["features"])
        kind = F.cross_entropy(outputs["kind"], batch["kind"], reduction="none")
        return Losses(kind + (outputs["size"] - batch["size"]).square(), None, outputs)

    make = lambda i: {"features": vector(i), "kind": label(i), "size": vector(i, 1)[0]}  # noqa: E731
    return task_of("several heads", make, Heads, step=step)


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 3), nn.Linear(4, 3)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        out: Tensor = self.first(first) * self.second(second)
        return out


def two_inputs() -> Task:
    return task_of("two inputs", lambda i: ((vector(i), vector(i + 99, 4)), label(i)), Both)


@dataclass
class Pairs:
    features: Tensor
    label: Tensor
    origin: str = "made"


def dataclasses() -> Task:
    def collate(examples: list[tuple[Tensor, Tensor]]) -> Pairs:
        return Pairs(*map(torch.stack, zip(*examples, strict=True)))

    def step(model: nn.Module, batch: Pairs) -> Tensor:
        assert batch.origin == "made"
        return F.cross_entropy(model(batch.features), batch.label, reduction="none")

    return task_of("dataclass", lambda i: (vector(i), label(i)), lambda: nn.Linear(6, 3), step=step, collate=collate)


# Pixels without a label, boxes, regression.


def segmentation() -> Task:
    def make(index: int) -> tuple[Tensor, Tensor]:
        image = torch.randn(2, 5, 5, generator=random(index))
        mask = torch.randint(0, 3, (5, 5), generator=random(index, 2))
        return image, torch.where(torch.rand(5, 5, generator=random(index, 3)) < index % 5 / 5, -1, mask)

    def step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Losses:
        images, masks = batch
        outputs = model(images)
        return Losses(F.cross_entropy(outputs, masks.clamp(min=0), reduction="none"), masks >= 0, outputs)

    return task_of("segmentation", make, lambda: nn.Conv2d(2, 3, 3, padding=1), step=step)


class Boxes(NamedTuple):
    images: Tensor
    boxes: list[Tensor]


def detection() -> Task:
    """Boxes of an image: a list of tensors with any number of rows, also none."""

    def make(index: int) -> tuple[Tensor, Tensor]:
        return vector(index), torch.randn(index % 4, 2, generator=random(index, 4))

    def collate(examples: list[tuple[Tensor, Tensor]]) -> Boxes:
        return Boxes(torch.stack([image for image, _ in examples]), [boxes for _, boxes in examples])

    def step(model: nn.Module, batch: Boxes) -> Tensor:
        found = model(batch.images)
        parts = [(boxes - one).square().sum(1) for boxes, one in zip(batch.boxes, found, strict=True)]
        return torch.cat(parts)  # [boxes of all images]

    return task_of("detection", make, lambda: nn.Linear(6, 2), step=step, collate=collate)


def regression() -> Task:
    def step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """A mean with its weight, as models of other libraries return it."""
        x, y = batch
        return F.mse_loss(model(x)[:, 0], y), torch.tensor(float(len(y)))

    return task_of("regression", lambda i: (vector(i), vector(i, 1)[0]), lambda: nn.Linear(6, 1), step=step)


# Contrastive, adversarial, frozen parts and an optimizer of its own.


def contrastive() -> Task:
    def step(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        first, second = (F.normalize(model(batch[name])) for name in ("first", "second"))
        logits = first @ rueda.gather(second).T / 0.5
        return F.cross_entropy(logits, torch.arange(len(first)), reduction="none")

    make = lambda i: {"first": vector(i), "second": vector(i) + 0.1 * vector(i + 700)}  # noqa: E731
    return task_of("contrastive", make, lambda: nn.Linear(6, 4), step=step)


class Adversaries(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 6))
        self.critic = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))


def adversarial() -> Task:
    def critic(model: Any, batch: dict[str, Tensor]) -> Tensor:
        made = model.generator(batch["noise"]).detach()
        return F.softplus(-model.critic(batch["real"]))[:, 0] + F.softplus(model.critic(made))[:, 0]

    def generator(model: Any, batch: dict[str, Tensor]) -> Tensor:
        return F.softplus(-model.critic(model.generator(batch["noise"])))[:, 0]

    phases = (
        Phase(name="critic", step=critic, parameters=lambda model: model.critic.parameters()),
        Phase(
            name="generator", step=generator, parameters=lambda model: model.generator.parameters(),
            recipe={"optimizer": "adam", "rate": 0.01},
        ),
    )  # fmt: skip
    make = lambda i: {"real": vector(i), "noise": vector(i + 300, 3)}  # noqa: E731
    return task_of("adversarial", make, Adversaries, phases=phases)


def frozen() -> Task:
    """A frozen body, and two layers that learn at different rates."""

    def model() -> nn.Module:
        network = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
        network[0].requires_grad_(False)
        return network

    def optimizer(model: Any, recipe: Recipe) -> torch.optim.Optimizer:
        groups = [{"params": model[4].parameters()}, {"params": model[2].parameters(), "lr": 0.1 * recipe.rate}]
        return torch.optim.AdamW(groups, lr=recipe.rate)

    return task_of("frozen", lambda i: (vector(i), label(i)), model, optimizer=optimizer)


# Streams and archives.


class Flow(IterableDataset[Any]):
    """A stream of sentences that does not tell its length."""

    def __init__(self, first: int, num_examples: int) -> None:
        self.first, self.num_examples = first, num_examples

    def __iter__(self) -> Iterator[Tensor]:
        return map(sentence, range(self.first, self.first + self.num_examples))


def streaming() -> Task:
    task = task_of("streaming", sentence, Language, step=language_step, collate=padded, unit="tokens")
    return replace(task, train=Flow(0, 48), test=Flow(500, 13))


def archive(file: Path, indices: range) -> None:
    """Write examples as webdataset names them: 0007.x.npy, 0007.y.cls."""
    with tarfile.open(file, "w") as tar:
        for index in indices:
            features = io.BytesIO()
            np.save(features, vector(index).numpy())
            for ending, content in (("x.npy", features.getvalue()), ("y.cls", str(index % 3).encode())):
                member = tarfile.TarInfo(f"{index:04}.{ending}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


@cache
def archives() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="rueda-test-archives-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for number, (first, last) in enumerate(((0, 20), (20, 31), (31, 48))):  # of different lengths
        archive(folder / f"train-{number}.tar", range(first, last))
    archive(folder / "test.tar", range(500, 513))
    return folder


def tar_files() -> Task:
    def load(files: str) -> Callable[[], TarFiles]:
        return lambda: TarFiles(str(archives() / files), fields=("x.npy", "y.cls"))

    task = task_of("tar files", lambda i: (vector(i), label(i)), lambda: nn.Linear(6, 3))
    return replace(task, train=load("train-*.tar"), test=load("test.tar"))


TASKS: dict[str, Callable[[], Task]] = {
    each.__name__: each
    for each in (
        language, two_keys, several_heads, two_inputs, dataclasses, segmentation, detection, regression, contrastive,
        adversarial, frozen, streaming, tar_files,
    )
}  # fmt: skip
