"""The trace against the exact one: unbiased, its error honest, better with a known part."""

from __future__ import annotations

import math

import pytest
import torch

from examine.quadratics import DOUBLE, rotated, spectrum_like_a_network
from rueda.errors import ExamineError
from rueda.examine.curvature.lanczos import extreme_eigenvalues
from rueda.examine.curvature.trace import estimate_trace, random_signs
from rueda.records.curvature import margin

MATRIX, _ = rotated(spectrum_like_a_network())
TRUE = float(MATRIX.trace())
LIKE = torch.zeros(60, dtype=DOUBLE)


def known(matrix: torch.Tensor = MATRIX, count: int = 4) -> object:
    return extreme_eigenvalues(matrix.mv, torch.ones(len(matrix), dtype=DOUBLE), count=count)


def test_signs_see_a_diagonal_exactly() -> None:
    diagonal = torch.linspace(-3, 5, 1000, dtype=DOUBLE)
    found = estimate_trace(lambda v: diagonal * v, diagonal)
    assert found.value == pytest.approx(float(diagonal.sum()), rel=1e-12)
    assert found.error < 1e-9
    assert found.converged


@pytest.mark.parametrize("with_known", [False, True])
def test_the_error_is_honest_over_many_seeds(with_known: bool) -> None:
    part = known() if with_known else None
    misses = []
    for seed in range(60):
        found = estimate_trace(MATRIX.mv, LIKE, tolerance=1e-9, most_products=20, known=part, seed=seed)  # type: ignore[arg-type]
        misses.append((found.value - TRUE) / found.error)
    mean, square = sum(misses) / 60, sum(miss**2 for miss in misses) / 60
    assert abs(mean) < 4 / math.sqrt(60)  # unbiased
    assert 0.5 < square < 2.0  # in units of its own error


@pytest.mark.parametrize("tolerance", [0.05, 1e-9])
@pytest.mark.parametrize("with_known", [False, True])
def test_the_interval_holds_the_truth_in_ninety_of_a_hundred(with_known: bool, tolerance: float) -> None:
    """600 estimates of 8 to 20 probes: 87 to 93 % is 3 points and 2.4 binomial errors around 90 %.

    With 1.645 standard errors instead of Student's t, 8 probes held 84 % without a known part.
    """
    matrix, _ = rotated(spectrum_like_a_network(), seed=1)
    part = known(matrix, count=2) if with_known else None
    held = 0
    for seed in range(600):
        found = estimate_trace(matrix.mv, LIKE, tolerance=tolerance, most_products=20, known=part, seed=seed)  # type: ignore[arg-type]
        held += abs(found.value - TRUE) <= margin(found.error, found.num_products)
    assert 0.87 <= held / 600 <= 0.93, held


def test_what_is_known_makes_the_error_small() -> None:
    plain = estimate_trace(MATRIX.mv, LIKE, tolerance=1e-9, most_products=20)
    better = estimate_trace(MATRIX.mv, LIKE, tolerance=1e-9, most_products=20, known=known())  # type: ignore[arg-type]
    assert better.error < plain.error / 5
    assert abs(better.value - TRUE) < 4 * better.error


def test_a_space_that_is_known_whole_needs_no_probe() -> None:
    small, _ = rotated(torch.tensor([3.0, 1.0, -2.0], dtype=DOUBLE))
    whole = extreme_eigenvalues(small.mv, torch.ones(3, dtype=DOUBLE), count=3)
    found = estimate_trace(small.mv, torch.zeros(3, dtype=DOUBLE), known=whole)
    assert found.value == pytest.approx(2.0, abs=1e-12)
    assert (found.error, found.num_products) == (0.0, 0)


def test_it_says_when_it_has_not_converged() -> None:
    assert not estimate_trace(MATRIX.mv, LIKE, tolerance=1e-6, most_products=9).converged
    assert estimate_trace(MATRIX.mv, LIKE, tolerance=1.0, most_products=900).num_products >= 8


def test_signs_are_fair_and_repeatable() -> None:
    signs = random_signs(torch.zeros(10_000), torch.Generator().manual_seed(1))
    assert set(signs.tolist()) == {-1.0, 1.0}
    assert abs(float(signs.mean())) < 0.04
    assert torch.equal(signs, random_signs(torch.zeros(10_000), torch.Generator().manual_seed(1)))


def test_wrong_settings_are_one_line() -> None:
    with pytest.raises(ExamineError, match="the trace: expected 2 products or more"):
        estimate_trace(MATRIX.mv, LIKE, most_products=1)
