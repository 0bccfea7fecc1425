"""The built-in tasks, by name. Each states the recipe with which one worker trains it well."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from rueda.data import Arrays, HorizontalFlip, RandomCrop
from rueda.records import Recipe
from rueda.tasks import datasets, models
from rueda.tasks.task import Task, squared_error
from rueda.world.seeds import derive


def linear() -> Task:
    """y = 10 (x + noise) + 2 for 100 x in [0, 10]: the course's first lab. The best mean squared error is about 98."""

    def data(split: str) -> Arrays:
        generator = torch.Generator().manual_seed(derive("linear", split))
        x = 10 * torch.rand(100, generator=generator)
        y = 10 * (x + torch.randn(100, generator=generator)) + 2
        return Arrays(x, y)

    return Task(
        name="linear",
        model=models.Line,
        train=partial(data, "train"),
        test=partial(data, "test"),
        loss=squared_error,
        metric=None,
        recipe=Recipe(batch=10, rate=1e-3, momentum=0.0, epochs=20),
    )


def glyphs_cnn() -> Task:
    """A small CNN on generated glyphs: needs no download, trains in seconds."""
    return Task(
        name="glyphs-cnn",
        model=models.small_cnn,
        train=partial(datasets.glyphs, "train"),
        test=partial(datasets.glyphs, "test"),
        recipe=Recipe(batch=64, rate=0.05, momentum=0.9, epochs=4),
    )


def fashion_mnist_cnn() -> Task:
    """A small CNN on Fashion-MNIST."""
    return Task(
        name="fashion-mnist-cnn",
        model=models.small_cnn,
        train=partial(datasets.load, "fashion-mnist", "train"),
        test=partial(datasets.load, "fashion-mnist", "test"),
        recipe=Recipe(batch=64, rate=0.05, momentum=0.9, epochs=5),
    )


def fashion_mnist_wrn() -> Task:
    """The course's Wide ResNet on Fashion-MNIST, at width 1; ``--set model.width=10`` is the full one."""
    return Task(
        name="fashion-mnist-wrn",
        model=partial(models.wide_resnet, width=1),
        train=partial(datasets.load, "fashion-mnist", "train"),
        test=partial(datasets.load, "fashion-mnist", "test"),
        augment=(HorizontalFlip(),),
        recipe=Recipe(batch=32, rate=0.01, momentum=0.9, epochs=40, target_accuracy=0.85, patience=2),
    )


def cifar10_cnn() -> Task:
    """The lecture's network on CIFAR-10, 12 epochs of Adam at batch 512, no augmentation, x / 255."""

    def plain(split: str) -> Arrays:
        data = datasets.load("cifar-10", split)
        return Arrays(data.inputs, data.targets, names=data.names)  # no mean, no deviation

    return Task(
        name="cifar10-cnn",
        model=models.lecture_cnn,
        train=partial(plain, "train"),
        test=partial(plain, "test"),
        recipe=Recipe(batch=512, optimizer="adam", rate=1e-3, epochs=12),
    )


def cifar10_resnet() -> Task:
    """ResNet-8 on CIFAR-10 with crop and flip; ``--set model.depth=18`` for the larger one."""
    return Task(
        name="cifar10-resnet",
        model=models.resnet,
        train=partial(datasets.load, "cifar-10", "train"),
        test=partial(datasets.load, "cifar-10", "test"),
        augment=(RandomCrop(padding=4), HorizontalFlip()),
        recipe=Recipe(batch=128, rate=0.1, momentum=0.9, weight_decay=5e-4, epochs=20, schedule="cosine"),
    )


BUILTIN: dict[str, Callable[[], Task]] = {
    "linear": linear,
    "glyphs-cnn": glyphs_cnn,
    "fashion-mnist-cnn": fashion_mnist_cnn,
    "fashion-mnist-wrn": fashion_mnist_wrn,
    "cifar10-cnn": cifar10_cnn,
    "cifar10-resnet": cifar10_resnet,
}
