"""Deep networks with and without skip connections, small enough to train and examine in seconds.

A block is ``relu(W h + c)``; with a skip connection it is ``h + relu(W h + c) / sqrt(depth)``. Li et al. (2018,
arXiv:1712.09913) saw that the surface around a deep network without skip connections is rugged, and around one
with them nearly convex.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from rueda.data import Arrays
from rueda.examine import Objective, surface
from rueda.examine.landscape.grid import axis
from rueda.examine.objective.objective import checksum
from rueda.labs.lab_1.surfaces import DEPTHS, STORED
from rueda.records import Recipe
from rueda.records.environment import environment
from rueda.records.landscape import Landscape, ModelLandscape
from rueda.tasks import Task
from rueda.tasks.datasets.glyphs import glyphs
from rueda.tasks.task import cross_entropy
from rueda.train import fit

NUM_EXAMPLES = 512
WIDTH = 24


class DeepNetwork(nn.Module):
    """A deep, narrow perceptron for glyphs of 14 x 14 pixels.

    >>> sum(parameter.numel() for parameter in DeepNetwork(depth=4, skip=True).parameters())
    7378
    """

    def __init__(self, depth: int = 20, skip: bool = True, width: int = WIDTH) -> None:
        super().__init__()
        self.skip = skip
        self.first = nn.Linear(196, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.last = nn.Linear(width, 10)
        for block in self.blocks:
            assert isinstance(block, nn.Linear)
            nn.init.kaiming_normal_(block.weight, nonlinearity="relu")
            nn.init.zeros_(block.bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [B, 1, 14, 14] to [B, 10]."""
        hidden = torch.relu(self.first(inputs.flatten(1)))
        for block in self.blocks:
            change = torch.relu(block(hidden))
            hidden = hidden + change / len(self.blocks) ** 0.5 if self.skip else change
        outputs: Tensor = self.last(hidden)
        return outputs


def small_glyphs(split: str) -> Arrays:
    """Return glyphs of half the resolution."""
    found = glyphs(split, num_examples=NUM_EXAMPLES, difficulty=0.3)
    images = torch.as_tensor(found.inputs).float().div(255)
    small = nn.functional.avg_pool2d(images, 2)
    return Arrays((small - small.mean()) / small.std(), found.targets, names=found.names)


def deep_task(depth: int, skip: bool) -> Task:
    """Return the task of training such a network."""
    return Task(
        name="deep-glyphs", model=partial(DeepNetwork, depth, skip), train=partial(small_glyphs, "train"),
        test=partial(small_glyphs, "test"), unit="images",
    )  # fmt: skip


def examined(depth: int, skip: bool, *, epochs: int = 30, num_points: int = 31, reach: float = 1.0) -> ModelLandscape:
    """Train a network and compute the loss surface around it, through the library.

    >>> member = examined(2, True, epochs=1, num_points=3)
    >>> member.name, member.surface is not None
    ('2 layers, with skip connections', True)
    """
    task = deep_task(depth, skip)
    recipe = Recipe(batch=32, optimizer="adam", rate=2e-3, epochs=epochs, schedule="cosine")
    result = fit(task, recipe, progress=False)
    data = small_glyphs("train")
    inputs, targets = torch.as_tensor(data.inputs), torch.as_tensor(data.targets)
    objective = Objective(result.model, cross_entropy, inputs, targets)
    around = axis(-reach, reach, num_points)
    with objective:
        found = surface({"train": objective}, x=around, y=around)
    return ModelLandscape(
        name=f"{depth} layers, {'with' if skip else 'without'} skip connections", weights=checksum(objective.origin),
        num_parameters=objective.num_parameters, num_examples=objective.num_examples, surface=found,
        step=None if result.row is None else result.row.step,
    )  # fmt: skip


def examine_all() -> Landscape:
    """Compute the surfaces that the lab shows: three depths, with and without skip connections (some minutes)."""
    members = tuple(examined(depth, skip) for depth in DEPTHS for skip in (True, False))
    return Landscape(task="deep-glyphs", members=members, environment=environment())


if __name__ == "__main__":  # python -m rueda.labs.lab_1.networks: computes the stored surfaces again
    examine_all().save(STORED)
