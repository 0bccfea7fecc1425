"""The random numbers of a worker's step: the same streams whatever way torch is seeded."""

from __future__ import annotations

import random

import numpy
import pytest
import torch

from rueda.world import seeds


def draws() -> tuple[list[float], float, float]:
    return torch.rand(4).tolist(), random.random(), float(numpy.random.rand())


@pytest.mark.parametrize("accelerator", [True, False])
def test_a_step_is_seeded_as_by_torch_itself(accelerator: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeds, "has_accelerator", lambda: accelerator)
    number = seeds.derive("worker", 3, 1, 7)
    torch.manual_seed(number)
    random.seed(number)
    numpy.random.seed(number % 2**32)
    expected = draws()
    seeds.seed_worker(3, 1, 7)
    assert draws() == expected
    seeds.seed_worker(3, 1, 8)
    assert draws() != expected
