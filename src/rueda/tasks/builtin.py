"""The built-in tasks, one function each; :data:`rueda.tasks.naming.BUILTIN_TASKS` lists their names.

Each states the recipe with which one worker trains it well. Image classifiers are here, the others in files by their
kind of data.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from rueda.data import Arrays, HorizontalFlip, RandomCrop
from rueda.records import Recipe
from rueda.tasks import datasets, models
from rueda.tasks.language import bytes_classifier, text_transformer
from rueda.tasks.pairs import glyphs_pairs
from rueda.tasks.tables import table_classes, table_regression
from rueda.tasks.task import Task, squared_error
from rueda.world.seeds import derive

__all__ = [
    "bytes_classifier",
    "cifar10_cnn",
    "cifar10_resnet",
    "fashion_mnist_cnn",
    "fashion_mnist_wrn",
    "glyphs_cnn",
    "glyphs_pairs",
    "glyphs_vit",
    "linear",
    "table_classes",
    "table_regression",
    "text_transformer",
]


def _task(name: str, model: Callable[..., nn.Module], data: Callable[[str], Arrays], **options: Any) -> Task:
    """Return a task whose data are loaded by a function of the split."""
    return Task(name=name, model=model, train=partial(data, "train"), test=partial(data, "test"), **options)


def linear() -> Task:
    """Return the task y = 10 (x + noise) + 2 for 100 x in [0, 10]; the best mean squared error is about 98."""

    def data(split: str) -> Arrays:
        generator = torch.Generator().manual_seed(derive("linear", split))
        x = 10 * torch.rand(100, generator=generator)
        y = 10 * (x + torch.randn(100, generator=generator)) + 2
        return Arrays(x, y)

    recipe = Recipe(batch=10, rate=1e-3, momentum=0.0, epochs=20)
    return _task("linear", models.Line, data, loss=squared_error, metric=None, recipe=recipe)


def glyphs_cnn() -> Task:
    """Return a small CNN on generated glyphs, which needs no download and trains in seconds."""
    recipe = Recipe(batch=64, rate=0.02, momentum=0.9, epochs=4)
    validation = partial(datasets.glyphs, "validation")
    return _task(
        "glyphs-cnn", models.small_cnn, datasets.glyphs, validation=validation, recipe=recipe, unit="images"
    )  # fmt: skip


def fashion_mnist_cnn() -> Task:
    """Return a small CNN on Fashion-MNIST."""
    recipe = Recipe(batch=64, rate=0.05, momentum=0.9, epochs=5)
    return _task(
        "fashion-mnist-cnn", models.small_cnn, partial(datasets.load, "fashion-mnist"), recipe=recipe, unit="images"
    )


def fashion_mnist_wrn() -> Task:
    """Return a Wide ResNet of width 1 on Fashion-MNIST; ``--set model.width=10`` gives the full width."""
    recipe = Recipe(batch=32, rate=0.01, momentum=0.9, epochs=40, target_accuracy=0.85, patience=2)
    model, data = partial(models.wide_resnet, width=1), partial(datasets.load, "fashion-mnist")
    return _task("fashion-mnist-wrn", model, data, augment=(HorizontalFlip(),), recipe=recipe, unit="images")


def cifar10_cnn() -> Task:
    """Return the model ``lecture_cnn`` on CIFAR-10: 12 epochs of Adam at batch 512, no augmentation, inputs x / 255."""

    def plain(split: str) -> Arrays:
        data = datasets.load("cifar-10", split)
        return Arrays(data.inputs, data.targets, names=data.names)  # without mean and standard deviation

    recipe = Recipe(batch=512, optimizer="adam", rate=1e-3, epochs=12)
    return _task("cifar10-cnn", models.lecture_cnn, plain, recipe=recipe, unit="images")


def cifar10_resnet() -> Task:
    """Return ResNet-8 on CIFAR-10 with random crops and flips; ``--set model.depth=18`` gives ResNet-18."""
    recipe = Recipe(batch=128, rate=0.1, momentum=0.9, weight_decay=5e-4, epochs=20, schedule="cosine")
    augment = (RandomCrop(padding=4), HorizontalFlip())
    data = partial(datasets.load, "cifar-10")
    return _task("cifar10-resnet", models.resnet, data, augment=augment, recipe=recipe, unit="images")


def glyphs_vit() -> Task:
    """Return a small vision transformer on generated glyphs."""
    recipe = Recipe(
        batch=64, optimizer="adamw", rate=3e-3, weight_decay=0.05, clip=1.0, epochs=8, schedule="cosine",
        warmup_epochs=1.0, warmup="from-zero",
    )  # fmt: skip
    return _task("glyphs-vit", models.vision_transformer, datasets.glyphs, recipe=recipe, unit="images")
