"""Where a model is cut: exactly the best places, by measured times."""

from __future__ import annotations

import itertools
import random

import torch
from torch import nn

from rueda.train.parallel.layer_times import best_cuts, measure_layers


def slowest(seconds: list[float], ends: list[int]) -> float:
    return max(sum(seconds[start:end]) for start, end in zip([0, *ends], ends, strict=False))


def test_the_best_cuts_are_those_of_a_search_of_all() -> None:
    generator = random.Random(0)
    for _ in range(100):
        seconds = [generator.choice([0.0, 1.0, 2.0, 7.0]) + generator.random() for _ in range(generator.randint(1, 9))]
        stages = generator.randint(1, len(seconds))
        found = best_cuts(seconds, stages)
        assert len(found) == stages and found[-1] == len(seconds) and found == sorted(set(found)) and found[0] > 0
        inner = itertools.combinations(range(1, len(seconds)), stages - 1)
        assert slowest(seconds, found) == min(slowest(seconds, [*cuts, len(seconds)]) for cuts in inner)


def test_measuring_changes_nothing() -> None:
    layers = [nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Linear(4, 2)]
    before = [one.clone() for layer in layers for one in (*layer.parameters(), *layer.buffers())]
    inputs = torch.randn(8, 4)
    seconds = measure_layers(layers, (inputs,), {})
    after = [one for layer in layers for one in (*layer.parameters(), *layer.buffers())]
    assert len(seconds) == 4 and all(one > 0 for one in seconds)
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))
    assert all(one.grad is None for layer in layers for one in layer.parameters())
    assert not inputs.requires_grad
