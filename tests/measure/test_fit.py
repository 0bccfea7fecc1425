"""The three fits find known constants again, through noise and outliers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rueda.errors import ProfileError
from rueda.measure.fit import fit_line, fit_memory, fit_overlap

SIZES = [4 * 4**power for power in range(13)]  # 4 B .. 64 MB


@pytest.mark.parametrize(("latency", "bandwidth"), [(2e-4, 1e9), (1e-5, 4e11), (5e-3, 2e7)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_latency_and_bandwidth(latency: float, bandwidth: float, seed: int) -> None:
    draws = np.random.default_rng(seed)
    seconds = [(latency + size / bandwidth) * math.exp(draws.normal(0, 0.03)) for size in SIZES]
    seconds[5] *= 20  # a busy machine
    line = fit_line(SIZES, seconds)
    assert line.latency == pytest.approx(latency, rel=0.1)
    assert line.bandwidth == pytest.approx(bandwidth, rel=0.1)
    assert line.residual > 1  # and the outlier is told


def test_an_exact_line_leaves_no_residual() -> None:
    line = fit_line(SIZES, [3e-4 + size / 7e8 for size in SIZES])
    assert (line.latency, line.bandwidth) == (pytest.approx(3e-4, rel=1e-4), pytest.approx(7e8, rel=1e-4))
    assert line.residual < 1e-4


def pollux(compute: float, exchange: float, gamma: float) -> float:
    """T = (Tc^g + Ts^g)^(1/g), as in the paper."""
    return math.pow(math.pow(compute, gamma) + math.pow(exchange, gamma), 1 / gamma)


@pytest.mark.parametrize("gamma", [1.0, 1.6, 3.0])
@pytest.mark.parametrize("guess", [0.5, 1.0, 2.0], ids="guess x{}".format)
def test_overlap_and_exchange(gamma: float, guess: float) -> None:
    compute = [0.004, 0.008, 0.016, 0.032, 0.064, 0.128]
    found = fit_overlap(compute, [pollux(c, 0.02, gamma) for c in compute], guess * 0.02)
    assert found.exchange == pytest.approx(0.02, rel=0.05)
    assert found.gamma == pytest.approx(gamma, rel=0.1)
    assert found.residual < 0.01


def test_overlap_through_noise_predicts_steps_in_between() -> None:
    draws = np.random.default_rng(0)
    compute = [0.004, 0.008, 0.016, 0.032, 0.064, 0.128]
    found = fit_overlap(compute, [pollux(c, 0.02, 1.5) * math.exp(draws.normal(0, 0.03)) for c in compute], 0.03)
    for c in (0.006, 0.024, 0.1):
        assert pollux(c, found.exchange, found.gamma) == pytest.approx(pollux(c, 0.02, 1.5), rel=0.05)


def test_full_overlap_is_the_longer_part() -> None:
    compute = [0.01, 0.03, 0.1]
    found = fit_overlap(compute, [max(c, 0.03) for c in compute], 0.03)
    assert found.gamma > 5
    assert pollux(0.1, found.exchange, found.gamma) == pytest.approx(0.1, rel=0.02)


def test_one_batch_keeps_the_guess_and_explains_the_step() -> None:
    hidden = fit_overlap([0.1], [0.11], 0.05)  # the exchange takes 0.05, the step is 0.01 longer: much of it hides
    assert hidden.exchange == pytest.approx(0.05, rel=0.1) and hidden.gamma > 1.5
    slow = fit_overlap([0.1], [0.3], 0.05)  # more than both: the exchange is slower inside a step
    assert slow.exchange == pytest.approx(0.2, rel=0.1) and slow.gamma == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("seconds", [[3e-3, 1e-3, 1e-3], [1e-3, 1e-3, 1e-3], [9e-3, 5e-3, 1e-4]])
def test_times_that_do_not_grow_have_a_finite_bandwidth(seconds: list[float]) -> None:
    """A hiccup in the short messages: the fit would otherwise end at 1e19 bytes/s, which no profile may hold."""
    sizes = [4096, 65536, 2**20]
    line = fit_line(sizes, seconds)
    assert sizes[-1] / seconds[-1] <= line.bandwidth <= 1001 * sizes[-1] / seconds[-1]


def test_memory_is_a_line_above_a_floor() -> None:
    batches = [8, 16, 32, 64, 128, 256]
    peaks = [max(400_000_000, 300_000_000 + 2_000_000 * batch) for batch in batches]
    found = fit_memory(batches, peaks)
    assert found == (pytest.approx(3e8, rel=1e-6), pytest.approx(2e6, rel=1e-6))
    assert fit_memory([8], [100]) is None
    assert fit_memory([8, 16], [100, 100]) is None


@pytest.mark.parametrize(
    "broken",
    [
        lambda: fit_line([4], [1e-3]),
        lambda: fit_line([4, 8], [1e-3, 0.0]),
        lambda: fit_overlap([], [], 0.1),
        lambda: fit_overlap([0.1], [0.2], 0.0),
        lambda: fit_overlap([0.1, 0.2], [0.2], 0.1),
    ],
)
def test_too_little_is_refused(broken) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ProfileError) as caught:
        broken()
    assert "\n" not in str(caught.value)
