"""The error that comes from which examples were drawn, against the spread over sets that were drawn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from examine.quadratics import DOUBLE
from harness import workers
from rueda.examine.curvature.hessian import hessian
from rueda.examine.curvature.sampling import GroupCurvatures, group_curvatures
from rueda.examine.objective.objective import Objective

SCALES = torch.cat([torch.tensor([3.0, 2.5], dtype=DOUBLE), torch.linspace(1.5, 0.1, 18, dtype=DOUBLE)])
"""the square roots of the eigenvalues of E[xx'], the Hessian of half the squared error"""


def half_square(outputs: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * (outputs - targets).square().sum(1)


def least_squares(seed: int, count: int = 256) -> Objective:
    draws = torch.Generator().manual_seed(seed)
    x = SCALES * torch.randn(count, len(SCALES), generator=draws, dtype=DOUBLE)
    model = nn.Linear(len(SCALES), 1, bias=False).double()
    nn.init.ones_(model.weight)
    return Objective(model, half_square, x, torch.randn(count, 1, generator=draws, dtype=DOUBLE))


def test_the_error_predicts_the_spread_over_sets_of_examples() -> None:
    """Over 200 sets the spread is known to within 5 %, a share of 90 % to within 2.1 points."""
    sets = [hessian(least_squares(seed), density=False, seed=seed) for seed in range(200)]
    tops, traces = np.array([one.largest for one in sets]), np.array([one.trace for one in sets])
    errors = np.array([[one.eigenvalues[0].sampling_error, one.trace_sampling_error] for one in sets], dtype=float)
    predicted = np.sqrt((errors**2).mean(axis=0))
    assert predicted[0] == pytest.approx(tops.std(ddof=1), rel=0.3)
    assert predicted[1] == pytest.approx(traces.std(ddof=1), rel=0.3)
    within = [
        abs(one.largest - tops.mean()) <= (one.sampling_margin(e) or 0)
        for one, e in zip(sets, errors[:, 0], strict=True)
    ]
    assert 0.84 <= np.mean(within) <= 0.96
    true = float((SCALES**2).sum())
    within = [abs(one.trace - true) <= (one.sampling_margin(e) or 0) for one, e in zip(sets, errors[:, 1], strict=True)]
    assert 0.84 <= np.mean(within) <= 0.96
    assert tops.mean() > 9.0  # the largest eigenvalue of a sample is too large on average
    assert {one.groups for one in sets} == {16}


def test_groups_together_are_the_whole() -> None:
    objective = least_squares(0, count=64)
    x = objective.inputs
    assert isinstance(x, Tensor)
    vectors = torch.eye(20, dtype=DOUBLE)[:3]
    probe = torch.ones(1, 20, dtype=DOUBLE)
    with objective:
        found = group_curvatures(objective, vectors, probe)
    whole = x.T @ x / 64
    np.testing.assert_allclose(found.matrices.mean(axis=0), whole[:3, :3].numpy(), rtol=1e-12)
    np.testing.assert_allclose(found.probes.mean(axis=0), [float(whole.sum())], rtol=1e-12)


def test_the_vector_of_a_group_comes_from_the_others() -> None:
    # Group 0 is steep along the second vector, all others along the first: of these it has nothing.
    matrices = np.stack([np.diag([0.0, 2.0])] + [np.diag([1.0, 0.0])] * 4)
    errors = GroupCurvatures(matrices, np.zeros((5, 0))).eigenvalue_errors(1)
    assert errors == pytest.approx([0.2])  # of 0, 1, 1, 1, 1


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_examples_give_few_groups(count: int) -> None:
    found = hessian(least_squares(0, count), density=False)
    assert found.groups == count
    assert (found.eigenvalues[0].sampling_error is None) == (count == 1)
    assert (found.trace_sampling_error is None) == (count == 1)
    without = hessian(least_squares(0, count), density=False, sampling=False)
    assert without.groups is without.eigenvalues[0].sampling_error is without.trace_sampling_error is None
    assert without.products < found.products


@workers(2)
def test_any_number_of_workers_gives_the_same_error() -> None:
    from rueda.world import World

    one, many = (hessian(least_squares(0), density=False, world=world) for world in (World(), None))
    assert one.eigenvalues == many.eigenvalues
    assert one.trace_sampling_error == many.trace_sampling_error
