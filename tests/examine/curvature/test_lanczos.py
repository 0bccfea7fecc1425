"""Extreme eigenvalues against dense ones: values, bounds that hold, restarts, multiplicity, the refusal to pretend."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from examine.quadratics import DOUBLE, rotated, spectrum_like_a_network
from rueda.errors import ExamineError
from rueda.examine.curvature.lanczos import extreme_eigenvalues

SPECTRA = {
    "network": spectrum_like_a_network(),
    "clustered": torch.cat([torch.tensor([1.001, 1.0], dtype=DOUBLE), torch.linspace(0, 0.99, 98, dtype=DOUBLE)]),
    "negative": -spectrum_like_a_network(),
    "tiny": torch.tensor([3.0, -7.0], dtype=DOUBLE),
    "one": torch.tensor([4.0], dtype=DOUBLE),
}


def random_start(size: int, seed: int = 0, dtype: torch.dtype = DOUBLE) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE).to(dtype)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("name", SPECTRA)
def test_values_are_the_dense_ones(name: str, largest: bool) -> None:
    matrix, _ = rotated(SPECTRA[name])
    size = len(matrix)
    count = min(3, size)
    sign = 1.0 if largest else -1.0
    matrix = sign * matrix
    found = extreme_eigenvalues(matrix.mv, random_start(size), count=count, tolerance=1e-9, most_products=900)
    dense = np.sort(SPECTRA[name].numpy())
    assert found.converged
    np.testing.assert_allclose(sign * found.values, dense[::-1][:count] if largest else dense[:count], atol=1e-7)
    coordinates = np.linalg.eigh(found.matrix)[1][:, ::-1][:, :count].T  # of the Ritz vectors in the basis
    vectors = torch.from_numpy(coordinates.copy()) @ found.basis
    for value, vector, residual in zip(found.values, vectors, found.residuals, strict=True):
        assert float(vector.norm()) == pytest.approx(1, abs=1e-9)
        # The residual that comes for free is the true one.
        assert float((matrix @ vector - value * vector).norm()) == pytest.approx(float(residual), abs=1e-9)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", ["network", "clustered", "negative"])
def test_the_bounds_hold_before_convergence(name: str, seed: int) -> None:
    matrix, _ = rotated(SPECTRA[name], seed)
    dense = SPECTRA[name].numpy()
    for products in (3, 5, 7, 9):
        found = extreme_eigenvalues(matrix.mv, random_start(len(matrix), seed), tolerance=1e-12, most_products=products)
        assert not found.converged
        assert found.num_products == products
        assert np.abs(dense - found.values[0]).min() <= found.residuals[0] * (1 + 1e-9)
        assert found.values[0] <= dense.max() + 1e-12  # Ritz values lie inside the spectrum
        assert found.errors[0] >= found.residuals[0]


@pytest.mark.parametrize("seed", range(5))
def test_the_estimated_error_is_an_honest_one_at_convergence(seed: int) -> None:
    matrix, _ = rotated(SPECTRA["network"], seed)
    found = extreme_eigenvalues(matrix.mv, random_start(60, seed), count=4, tolerance=1e-3)
    true = np.array([9.0, 5.0, 4.9, 2.0])
    assert found.converged
    assert (np.abs(found.values - true) <= found.errors * (1 + 1e-6) + 1e-12).all()
    assert (np.abs(found.values - true) <= 1e-3 * true).all()


@pytest.mark.parametrize("tolerance", [1e-2, 1e-3, 1e-5])
@pytest.mark.parametrize("name", ["network", "clustered"])
def test_converged_means_that_the_error_is_small(name: str, tolerance: float) -> None:
    matrix, _ = rotated(SPECTRA[name])
    told: list[tuple[int, float, float]] = []
    found = extreme_eigenvalues(
        matrix.mv, random_start(len(matrix)), tolerance=tolerance, step=lambda *what: told.append(what)
    )
    assert found.converged
    assert found.residuals[0] <= found.errors[0] <= tolerance * found.values[0]
    # With one product less it had not been found.
    before = extreme_eigenvalues(
        matrix.mv, random_start(len(matrix)), tolerance=tolerance, most_products=found.num_products - 1
    )
    assert not before.converged
    assert before.errors[0] > tolerance * before.values[0]
    assert told[-1] == (found.num_products, found.values[0], found.residuals[0])


def test_the_middle_of_a_close_pair_is_not_taken_for_a_value() -> None:
    # After 2 products the pair looks like one value at 0.99 with |r| = 0.01, far from all others: |r|² / gap is 1e-4.
    values = torch.cat([torch.tensor([1.0, 0.98], dtype=DOUBLE), torch.linspace(0, 0.01, 58, dtype=DOUBLE)])
    start = torch.zeros(60, dtype=DOUBLE)
    start[:2], start[2:] = 1.0, 0.1
    early = extreme_eigenvalues(torch.diag(values).mv, start, most_products=2)
    assert early.values[0] == pytest.approx(0.99, abs=1e-3)
    assert early.errors[0] > 0.01 and not early.converged
    found = extreme_eigenvalues(torch.diag(values).mv, start)
    assert found.converged
    assert found.values[0] == pytest.approx(1.0, rel=1e-3)


def spectrum_with_a_pair(apart: float, kind: str, draws: np.random.Generator, size: int = 300) -> np.ndarray:
    """Give a largest eigenvalue of 1, a second one next to it, and others that are far, like a network's, or dense."""
    others = {
        "far": lambda: draws.exponential(0.003, size - 2),
        "network": lambda: np.concatenate([np.linspace(0.8, 0.3, 8), draws.exponential(0.01, size - 10)]),
        "dense": lambda: np.linspace(-0.1, 0.95, size - 2),
    }
    return np.concatenate([[1.0, 1.0 - apart], others[kind]()])


@pytest.mark.parametrize("apart", [0.05, 0.005, 0.001])
@pytest.mark.parametrize(
    ("kind", "basis_size", "dtype"),
    [("far", 80, DOUBLE), ("network", 80, DOUBLE), ("network", 80, torch.float32), ("dense", 1, DOUBLE)],
    ids=["far", "network", "network in float32", "dense, with restarts"],
)
def test_the_error_holds_the_truth_however_close_the_second_value(
    kind: str, basis_size: int, dtype: torch.dtype, apart: float
) -> None:
    """The risk is 1 %: of 200 searches more than 7 miss once in a thousand times.

    The bound by Kato and Temple held 0 to 96 % of them, the residual alone 57 to 99 %.
    """
    draws = np.random.default_rng(int(1e4 * apart))
    held = right = 0
    for seed in range(200):
        values = torch.from_numpy(spectrum_with_a_pair(apart, kind, draws)).to(dtype)
        start = random_start(len(values), seed, dtype)
        found = extreme_eigenvalues(lambda v, values=values: values * v, start, basis_size=basis_size)
        assert found.converged and found.errors[0] <= 1e-3 * found.values[0]
        held += 1.0 - found.values[0] <= found.errors[0]
        right += 1.0 - found.values[0] <= 1e-3
    assert held >= 193
    assert right >= 193


def test_a_start_that_is_fixed_in_part_has_a_bound_that_knows_it() -> None:
    # The first eigenvector is orthogonal to the fixed part, which is the second one and ten times as long.
    held = 0
    for seed in range(200):
        values = torch.cat([torch.tensor([1.0, 0.99], dtype=DOUBLE), torch.linspace(0, 0.5, 298, dtype=DOUBLE)])
        noise = random_start(300, seed)
        start = noise / noise.norm()
        start[1] += 10.0
        length = 1 / float(start.norm())
        found = extreme_eigenvalues(lambda v, values=values: values * v, start, random_length=length)
        held += 1.0 - found.values[0] <= found.errors[0]
    assert held >= 193


def test_restarts_bound_the_memory_and_change_no_answer() -> None:
    values = torch.linspace(0, 1, 400, dtype=DOUBLE)  # no gaps: some hundred products are needed
    matrix, _ = rotated(values)
    settings = {"count": 2, "tolerance": 1e-7, "most_products": 2000}
    free = extreme_eigenvalues(matrix.mv, random_start(400), basis_size=400, **settings)
    bound = extreme_eigenvalues(matrix.mv, random_start(400), basis_size=1, **settings)
    assert free.converged and bound.converged
    assert bound.num_products > free.num_products
    assert len(bound.basis) <= 22
    np.testing.assert_allclose(bound.values, [1, 1 - 1 / 399], atol=1e-6)
    np.testing.assert_allclose(free.values, bound.values, atol=1e-6)
    assert torch.allclose(bound.basis @ bound.basis.T, torch.eye(len(bound.basis), dtype=DOUBLE), atol=1e-10)
    seen = bound.basis @ matrix @ bound.basis.T
    np.testing.assert_allclose(bound.matrix, seen.numpy(), atol=1e-10)


@pytest.mark.parametrize(
    ("values", "top"),
    [([5.0, 5.0, 1.0, 1.0, 1.0, 0.0], [5.0, 5.0]), ([2.0] * 8, [2.0, 2.0]), ([0.0] * 5, [0.0, 0.0])],
)
def test_multiple_eigenvalues(values: list[float], top: list[float]) -> None:
    matrix, _ = rotated(torch.tensor(values, dtype=DOUBLE))
    found = extreme_eigenvalues(matrix.mv, random_start(len(values)), count=2)
    np.testing.assert_allclose(found.values, top, atol=1e-9)
    assert found.converged


@pytest.mark.parametrize("size", range(2, 14))
def test_a_new_direction_is_never_one_of_the_old(size: int) -> None:
    # The start and the first fresh direction are the same draw: only rounding error, or nothing, stands out of it.
    matrix = 2 * torch.eye(size, dtype=DOUBLE)
    found = extreme_eigenvalues(matrix.mv, random_start(size, seed=0), count=2, seed=0)
    np.testing.assert_allclose(found.values, [2.0, 2.0], rtol=1e-12)
    np.testing.assert_allclose((found.basis @ found.basis.T).numpy(), np.eye(len(found.basis)), atol=1e-10)


def test_single_precision_reaches_its_own_limit() -> None:
    matrix, _ = rotated(SPECTRA["network"])
    found = extreme_eigenvalues(matrix.float().mv, random_start(60, dtype=torch.float32), tolerance=1e-6)
    assert found.converged
    assert found.values[0] == pytest.approx(9, rel=1e-5)


@pytest.mark.parametrize("wrong", [{"count": 0}, {"tolerance": 0.0}, {"most_products": 0}])
def test_wrong_settings_are_one_line(wrong: dict[str, float]) -> None:
    with pytest.raises(ExamineError, match="eigenvalues: expected") as caught:
        extreme_eigenvalues(torch.eye(3).mv, torch.ones(3), **wrong)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
