"""A built-in contrastive task: two images of one class attract each other, all other pairs repel (SimCLR, InfoNCE)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rueda.data import Arrays
from rueda.data.partition import order
from rueda.records import Recipe
from rueda.tasks import models
from rueda.tasks.datasets import glyphs
from rueda.tasks.step import Losses
from rueda.tasks.task import Task
from rueda.world.gathering import gather

TEMPERATURE = 0.2
_SIZES = {"train": 6_000, "test": 1_000}


def image_pairs(split: str) -> Arrays:
    """Return pairs of generated glyphs of one class as images of two channels, [N, 2, 28, 28], and their classes."""
    images = glyphs(split, num_examples=2 * _SIZES[split] + 20)
    by_class = torch.argsort(images.targets, stable=True)
    classes = images.targets[by_class]
    same = (classes[:-1:2] == classes[1::2]).nonzero().flatten()[: _SIZES[split]]
    same = same[torch.from_numpy(order(len(same), seed=0, epoch=0))]  # not sorted by class, for evaluations
    first, second = by_class[2 * same], by_class[2 * same + 1]
    pairs = torch.cat([images.inputs[first], images.inputs[second]], dim=1)
    mean, std = list(images.mean or ()) * 2, list(images.std or ()) * 2
    return Arrays(pairs, images.targets[first], mean=mean, std=std, names=images.names)


def contrast(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Losses:
    """Compute InfoNCE over the pairs of all workers, [2 B] (Oord et al. 2018, arXiv:1807.03748).

    Each image must find its partner among the second images (first images) of the global batch::

        loss_i = -log( exp(a_i . b_i / t) / sum_j exp(a_i . b_j / t) )
    """
    images, _ = batch
    first, second = model(images[:, :1]), model(images[:, 1:])
    own = torch.arange(first.shape[0], device=first.device)  # the rows of this worker come first
    forward, backward = first @ gather(second).T, second @ gather(first).T
    losses = [F.cross_entropy(each / TEMPERATURE, own, reduction="none") for each in (forward, backward)]
    return Losses(torch.cat(losses), None, forward)


def glyphs_pairs() -> Task:
    """Return an encoder of generated glyphs, trained without labels by the contrast of pairs."""
    recipe = Recipe(batch=64, optimizer="adamw", rate=3e-3, weight_decay=1e-4, epochs=5, schedule="cosine")
    return Task(
        name="glyphs-pairs", model=models.PairEncoder, train=partial(image_pairs, "train"),
        test=partial(image_pairs, "test"), step=contrast, metric=None, unit="pairs", recipe=recipe,
    )  # fmt: skip
