"""The noise-scale estimator against models whose gradient covariance is known in closed form."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.distributed as dist
from scipy.stats import t as student
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from harness import workers
from rueda.errors import RecipeError
from rueda.optim.meters import ExchangeMeter, PartsMeter, layer_groups, moments
from rueda.optim.noise_scale import Estimator

Norms = list[tuple[float, float]]
FLAT, STEEP = np.ones(50), 100 * 0.7 ** np.arange(40)
ONE = np.array([100.0] + [0.1] * 50)


def gaussian(rng: np.random.Generator, steps: int, parts: int, size: int, spectrum: np.ndarray, square: float) -> Norms:
    """Gradients with |G|² = square and a covariance with this spectrum: norms of the parts and of their mean."""
    mean = np.zeros(len(spectrum))
    mean[-1] = math.sqrt(square)
    drawn = mean + rng.standard_normal((steps, parts, len(spectrum))) * np.sqrt(spectrum / size)
    return list(zip((drawn**2).sum((1, 2)).tolist(), (drawn.mean(1) ** 2).sum(1).tolist(), strict=True))


def regression(rng: np.random.Generator, steps: int, parts: int, size: int) -> Norms:
    """Linear least squares with Gaussian inputs: gradients x (x·delta - noise), far from normal."""
    inputs = rng.standard_normal((steps, parts, size, DIMENSIONS))
    errors = inputs @ DELTA - SIGMA * rng.standard_normal((steps, parts, size))
    drawn = (inputs * errors[..., None]).mean(2)
    return list(zip((drawn**2).sum((1, 2)).tolist(), (drawn.mean(1) ** 2).sum(1).tolist(), strict=True))


DIMENSIONS, SIGMA = 10, 2.0
DELTA = np.full(DIMENSIONS, 0.5)
# E[x xᵀ (x·d)²] has the trace (D + 2)|d|² and the noise D sigma²; the mean is d.
REGRESSION_S = (DIMENSIONS + 1) * float(DELTA @ DELTA) + DIMENSIONS * SIGMA**2
REGRESSION_SCALE = REGRESSION_S / float(DELTA @ DELTA)


def observed(norms: Norms, parts: int, size: float, memory: int | None = None) -> Estimator:
    estimator = Estimator(memory)
    for local, mean in norms:
        assert estimator.observe(local, mean, parts, size)
    return estimator


def test_one_step_is_the_papers_formula() -> None:
    rng = np.random.default_rng(0)
    for parts, size in ((2, 16), (8, 3), (100, 1)):
        gradients = rng.standard_normal((parts, 7)) + 1.0
        small = float((gradients**2).sum(1).mean())
        big = float((gradients.mean(0) ** 2).sum())
        bs, bb = size, size * parts
        square, variance = (bb * big - bs * small) / (bb - bs), (small - big) / (1 / bs - 1 / bb)
        found = observed([(small * parts, big)], parts, size).estimate(step=1)
        assert found.square == pytest.approx(square, rel=1e-12)
        assert found.variance == pytest.approx(variance, rel=1e-12)
        assert (found.low, found.high) == (0.0, math.inf)  # one step has no interval


@pytest.mark.parametrize("parts", [2, 8])
def test_within_five_per_cent_of_least_squares_given_enough_steps(parts: int) -> None:
    found = observed(regression(np.random.default_rng(0), 4000, parts, 8), parts, 8).estimate(step=4000)
    assert found.value == pytest.approx(REGRESSION_SCALE, rel=0.05)
    assert found.variance == pytest.approx(REGRESSION_S, rel=0.05)
    assert found.low < REGRESSION_SCALE < found.high < 1.15 * found.low


COVERAGE = {
    "least squares": lambda rng: (regression(rng, 100, 2, 8), 2, 8, REGRESSION_SCALE, None),
    "few steps": lambda rng: (gaussian(rng, 20, 2, 32, FLAT, 50 / 64), 2, 32, 64, None),
    "noise rules": lambda rng: (gaussian(rng, 100, 2, 32, STEEP, STEEP.sum() / 640), 2, 32, 640, None),
    "signal rules": lambda rng: (gaussian(rng, 100, 2, 32, STEEP, STEEP.sum() / 6.4), 2, 32, 6.4, None),
    "one direction": lambda rng: (gaussian(rng, 100, 8, 32, ONE, ONE.sum() / 256), 8, 32, 256, None),
    "moving average": lambda rng: (gaussian(rng, 300, 2, 32, STEEP, STEEP.sum() / 100), 2, 32, 100, 50),
}


@pytest.mark.parametrize("name", COVERAGE)
def test_the_interval_covers_the_truth_as_often_as_it_says(name: str) -> None:
    """600 estimates: 92 to 98 % is 3 points, and 3.4 binomial errors, around the nominal 95 %."""
    covered = 0
    for seed in range(600):
        norms, parts, size, truth, memory = COVERAGE[name](np.random.default_rng(seed))
        found = observed(norms, parts, size, memory).estimate(step=0)
        covered += found.low <= truth <= found.high
    assert 0.92 <= covered / 600 <= 0.98, covered


def test_drift_is_no_error() -> None:
    """|G|² falls to a tenth while it is measured: the truth is S over its mean, and the interval stays as narrow."""
    squares = np.geomspace(10.0, 1.0, 200)
    covered, widths, steady = 0, [], []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        norms = [gaussian(rng, 1, 2, 32, FLAT, square)[0] for square in squares]
        found = observed(norms, 2, 32).estimate(step=200)
        covered += found.low <= 50 / squares.mean() <= found.high
        widths.append(found.high / found.low)
        fixed = observed(gaussian(rng, 200, 2, 32, FLAT, float(squares.mean())), 2, 32).estimate(step=200)
        steady.append(fixed.high / fixed.low)
    assert covered >= 90
    # With the deviation round the mean instead of differences it would be 2.5 times as wide.
    assert math.log(np.median(widths)) < 1.2 * math.log(np.median(steady))


def test_no_signal_has_no_upper_end() -> None:
    ends = [observed(gaussian(np.random.default_rng(seed), 50, 2, 8, FLAT, 0.0), 2, 8).estimate(step=0) for seed in range(100)]  # fmt: skip  # noqa: E501
    assert sum(found.high == math.inf for found in ends) >= 90
    assert sum(found.low > 100 and math.isfinite(found.low) for found in ends) >= 90  # but it is not small
    assert all(found.value == math.inf for found in ends if found.square <= 0)
    nothing = observed([(0.0, 0.0)] * 3, 2, 8).estimate(step=0)
    assert math.isnan(nothing.value)
    alike = observed([(2.0, 1.0)] * 3, 2, 8).estimate(step=0)  # equal gradients: no noise at all
    assert alike.value == 0.0 and alike.square == 1.0


@pytest.mark.parametrize("memory", [None, 7])
def test_average_and_interval_as_written_out(memory: int | None) -> None:
    """The same from whole arrays: weighted means, von Neumann's differences, the roots of Fieller's quadratic."""
    norms = gaussian(np.random.default_rng(3), 30, 4, 8, FLAT, 3.0)
    found = observed(norms, 4, 8, memory).estimate(step=30)
    pairs = np.array([moments(local, mean, 4) for local, mean in norms]) * [8, 1]
    weights = np.ones(30) if memory is None else (1 - 1 / memory) ** np.arange(29, -1, -1)
    s, g = (weights[:, None] * pairs).sum(0) / weights.sum()
    differences = np.diff(pairs, axis=0)
    w2 = weights[1:] ** 2
    error = (w2[:, None, None] * differences[:, :, None] * differences[:, None, :] / 2).sum(0) / w2.sum()
    error *= (weights**2).sum() / weights.sum() ** 2
    limit = student.ppf(0.975, 2 / 3 * w2.sum() ** 2 / (w2**2).sum()) ** 2
    roots = np.roots([s * s - limit * error[0, 0], -2 * (s * g - limit * error[0, 1]), g * g - limit * error[1, 1]])
    assert found.value == pytest.approx(s / g, rel=1e-12)
    assert sorted([found.low, found.high]) == pytest.approx(sorted(1 / roots), rel=1e-9)
    assert found.steps == round(weights.sum() ** 2 / (weights**2).sum())


def test_the_batch_may_change_between_steps() -> None:
    rng = np.random.default_rng(0)
    estimator = Estimator()
    for step in range(3000):
        parts, size = ((2, 4), (4, 16), (2, 64))[step % 3]
        estimator.observe(*regression(rng, 1, parts, size)[0], parts, size)
    found = estimator.estimate(step=3000)
    assert found.value == pytest.approx(REGRESSION_SCALE, rel=0.05) and found.low < REGRESSION_SCALE < found.high


def test_state_goes_on_to_the_last_bit() -> None:
    norms = gaussian(np.random.default_rng(0), 40, 2, 8, FLAT, 3.0)
    whole, first, second = observed(norms, 2, 8, 20), observed(norms[:17], 2, 8, 20), Estimator(20)
    second.load_state_dict(first.state_dict())
    for local, mean in norms[17:]:
        second.observe(local, mean, 2, 8)
    assert second.estimate(step=40) == whole.estimate(step=40)
    assert second.state_dict() == whole.state_dict()


def test_what_is_not_finite_says_nothing() -> None:
    norms = gaussian(np.random.default_rng(0), 10, 2, 8, FLAT, 3.0)
    estimator = observed(norms, 2, 8)
    before = estimator.estimate(step=10)
    for bad in ((math.inf, 1.0), (1.0, math.inf), (math.nan, 1.0), (math.inf, math.inf)):
        assert not estimator.observe(*bad, 2, 8)
    assert estimator.estimate(step=10) == before and estimator.num_steps == 10


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Estimator(1), "at least 2 steps, got 1"),
        (lambda: Estimator(confidence=1.0), "between 0 and 1, got 1.0"),
        (lambda: Estimator().observe(1.0, 1.0, 1, 8), "at least 2 parts"),
        (lambda: Estimator().observe(1.0, 1.0, 2, 0), "at least 2 parts with examples"),
    ],
)
def test_bad_values_are_refused(make: object, message: str) -> None:
    with pytest.raises(RecipeError, match=message) as caught:
        make()  # type: ignore[operator]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("sizes", [(4, 4), (3, 5), (8, 1, 2), (1,) * 6])
def test_parts_of_any_size(sizes: tuple[int, ...]) -> None:
    """S = (sum b_i |g_i|² - M |g|²) / (n - 1), and the whole gradient stands in .grad."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    inputs = torch.randn(sum(sizes), 3, dtype=torch.float64)
    groups = layer_groups(model)
    meter = PartsMeter(model.parameters(), groups)
    gradients = []
    for part in inputs.split(list(sizes)):
        gradients.append(torch.autograd.grad(model(part).square().mean(), list(model.parameters())))
        (model(part).square().sum() / len(inputs)).backward()
        meter.take(len(part))
    reading = meter.finish()
    whole = torch.autograd.grad(model(inputs).square().mean(), list(model.parameters()))
    for parameter, expected in zip(model.parameters(), whole, strict=True):
        torch.testing.assert_close(parameter.grad, expected)

    def norm(gradient: tuple[torch.Tensor, ...]) -> float:
        return sum(float(g.square().sum()) for g in gradient)

    count, total = len(sizes), sum(sizes)
    pairs = list(zip(sizes, gradients, strict=True))
    expected_s = (sum(b * norm(g) for b, g in pairs) - total * norm(whole)) / (count - 1)
    estimator = Estimator()
    estimator.observe(*reading.sums(), reading.num_parts, reading.examples_per_part)
    assert estimator.estimate(step=1).variance == pytest.approx(expected_s, rel=1e-10)
    assert estimator.estimate(step=1).square == pytest.approx(norm(whole) - expected_s / total, rel=1e-10)
    assert list(groups) == ["0", "2"]
    for number, part in enumerate((slice(0, 2), slice(2, 4))):  # weight and bias of each layer
        expected_local = sum(b * count / total * norm(g[part]) for b, g in pairs)
        assert reading.norms[:, number].tolist() == pytest.approx([expected_local, norm(whole[part])], rel=1e-10)


def test_channels_last_and_unused_parameters() -> None:
    """Weights in another memory order, and one without a gradient."""
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(16, 1)).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    unused = nn.Parameter(torch.ones(3))
    meter = PartsMeter([*model.parameters(), unused])
    inputs = torch.randn(6, 2, 4, 4).contiguous(memory_format=torch.channels_last)
    for part in inputs.split(3):
        (model(part).sum() / 6).backward()
        meter.take(3)
    local, mean = meter.finish().sums()
    assert unused.grad is None
    assert mean == pytest.approx(sum(float(p.grad.square().sum()) for p in model.parameters()), rel=1e-6)
    assert local > mean


@workers(2)
def test_the_exchange_shows_each_workers_gradient_and_their_mean() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    groups = layer_groups(model)
    wrapped = DistributedDataParallel(model, bucket_cap_mb=1e-4, gradient_as_bucket_view=True)  # several buckets
    meter = ExchangeMeter(wrapped, groups)
    shards = torch.randn(2, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for step in range(3):
        meter.active = step != 1
        model.zero_grad()
        wrapped(shards[dist.get_rank()] + step).square().mean().backward()
        reading = meter.read(6)
        if step == 1:
            assert reading is None
            continue
        assert reading is not None
        gradients = []
        for shard in shards:  # both workers in one process
            loss = model(shard + step).square().mean()
            gradients.append(torch.autograd.grad(loss, list(model.parameters())))
        mean = [(a + b) / 2 for a, b in zip(*gradients, strict=True)]
        for number, part in enumerate((slice(0, 2), slice(2, 4))):
            local = sum(float(g.square().sum()) for one in gradients for g in one[part])
            whole = sum(float(g.square().sum()) for g in mean[part])
            assert reading.norms[:, number].tolist() == pytest.approx([local, whole], rel=1e-9)
        everyone: list[object] = [None, None]
        dist.all_gather_object(everyone, reading.norms.tolist())
        assert everyone[0] == everyone[1]  # bit for bit: it may decide what all of them do
