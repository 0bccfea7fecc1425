"""Directions: the formula filter by filter, written again here, and what has no length."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from rueda.errors import ExamineError
from rueda.examine.landscape.directions import check_direction, cosine, norm, random_direction
from rueda.tasks.models import resnet


def test_every_filter_has_the_length_of_the_models() -> None:
    torch.manual_seed(0)
    model = resnet()
    direction = random_direction([one.detach() for one in model.parameters()], seed=3)
    num_filters = 0
    for (name, weights), part in zip(model.named_parameters(), direction, strict=True):
        assert part.shape == weights.shape and part.dtype == weights.dtype
        if weights.dim() < 2:
            assert not part.any(), f"{name} is a bias or a norm"
            continue
        for own, drawn in zip(weights.tolist(), part.tolist(), strict=True):
            wanted = math.sqrt(sum(value**2 for value in _flat(own)))
            assert math.sqrt(sum(value**2 for value in _flat(drawn))) == pytest.approx(wanted, rel=1e-5), name
            num_filters += 1
    assert num_filters > 100


def _flat(values: object) -> list[float]:
    return [item for value in values for item in _flat(value)] if isinstance(values, list) else [values]  # type: ignore[list-item]


def test_only_lengths_are_changed_and_each_filter_keeps_its_direction() -> None:
    weights = torch.randn(5, 3, 2, 2)
    raw = random_direction([weights], seed=1, normalise="none")[0]
    scaled = random_direction([weights], seed=1)[0]
    layered = random_direction([weights], seed=1, normalise="layer")[0]
    for index in range(5):
        assert cosine([raw[index]], [scaled[index]]) == pytest.approx(1.0, abs=1e-6)
    assert norm([layered]) == pytest.approx(norm([weights]), rel=1e-6)
    assert cosine([raw], [layered]) == pytest.approx(1.0, abs=1e-6)


def test_filters_that_are_zero_stay() -> None:
    weights = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    (direction,) = random_direction([weights])
    assert norm([direction[0]]) == pytest.approx(5.0, rel=1e-6)
    assert not direction[1].any() and torch.isfinite(direction).all()


def test_a_zero_bias_is_no_trouble() -> None:
    model = nn.Linear(4, 3)
    nn.init.zeros_(model.bias)
    direction = random_direction([one.detach() for one in model.parameters()])
    assert all(torch.isfinite(part).all() for part in direction)


def test_seeds_and_indices() -> None:
    weights = [torch.ones(40, 40)]
    one = random_direction(weights, seed=0, index=0)
    assert torch.equal(one[0], random_direction(weights, seed=0, index=0)[0])
    for other in (random_direction(weights, seed=0, index=1), random_direction(weights, seed=1, index=0)):
        assert abs(cosine(one, other)) < 0.1  # 4 standard deviations of 1 / sqrt(1600)


@pytest.mark.parametrize(
    ("parts", "line"),
    [
        ([torch.zeros(3, 3)], "the random direction: expected a length above 0, got 0.0"),
        ([torch.ones(3), torch.ones(5)], "normalise = none"),
    ],
)
def test_no_length_is_one_line(parts: list[torch.Tensor], line: str) -> None:
    with pytest.raises(ExamineError, match=line) as error:
        random_direction(parts)
    assert len(str(error.value).splitlines()) == 1


def test_other_bad_input() -> None:
    with pytest.raises(ExamineError, match="expected one of filter, layer, none, got 'filters'"):
        random_direction([torch.ones(2, 2)], normalise="filters")
    with pytest.raises(ExamineError, match="expected finite numbers, got nan"):
        check_direction([torch.tensor([1.0, torch.nan])])
