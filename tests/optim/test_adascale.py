from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from harness import workers
from rueda.errors import RecipeError
from rueda.optim import AdaScale, gain
from rueda.optim.adascale import moments


def test_the_moments_are_the_variance_and_the_square_of_the_mean():
    """Unbiased: over many draws of S gradients of known mean and covariance."""
    generator = torch.Generator().manual_seed(0)
    size, dimensions, draws, sigma = 4, 6, 20_000, 1.5
    mean = torch.linspace(-1.0, 1.0, dimensions, dtype=torch.float64)
    noise = torch.randn(draws, size, dimensions, generator=generator, dtype=torch.float64)
    gradients = mean + sigma * noise
    local, average = gradients.square().sum((1, 2)), gradients.mean(1).square().sum(1)
    estimates = torch.tensor([moments(a, b, size) for a, b in zip(local.tolist(), average.tolist(), strict=True)])
    error = 4 * estimates.std(0) / draws**0.5  # four standard errors
    truth = torch.tensor([dimensions * sigma**2, float(mean.square().sum())])
    assert ((estimates.mean(0) - truth).abs() < error).all()


@pytest.mark.parametrize("size", [2, 8, 100])
def test_the_gain_lies_between_1_and_the_number_of_workers(size):
    generator = torch.Generator().manual_seed(0)
    for spread in (0.0, 0.1, 1.0, 10.0, 1e6):
        gradients = 1.0 + spread * torch.randn(size, 5, generator=generator, dtype=torch.float64)
        value = gain(float(gradients.square().sum()), float(gradients.mean(0).square().sum()), size)
        assert 1.0 - 1e-12 <= value <= size + 1e-12
    assert gain(7.0, 7.0, 1) == 1.0
    assert gain(0.0, 0.0, size) == 1.0


def test_a_step_uses_rate_times_gain_and_the_clock_advances_by_it():
    w = nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    optimizer = AdaScale(torch.optim.SGD([w], lr=0.1), scale=2, smoothing=0.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    expected, clock = 1.0, 0.0
    for step, (first, second, mean) in enumerate([(5.0, 5.0, 3.0), (1.0, 1.0, 0.5), (1.0, 1.0, 1.0)]):
        w.grad = torch.tensor([1.0], dtype=torch.float64)
        optimizer.observe([first, second], mean)
        optimizer.step()
        scheduler.step()
        r = gain(first + second, mean, 2)
        expected, clock = expected - 0.1 * 0.5**step * r, clock + r
        assert optimizer.gain == pytest.approx(r)
    assert float(w.detach()) == pytest.approx(expected, rel=1e-12)
    assert optimizer.clock == pytest.approx(clock)


def test_moving_averages_are_the_papers():
    optimizer = AdaScale(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1), scale=4)
    theta, s2, mu2 = 1 - 4 / 1000, 0.0, 0.0
    for local, mean in [([1.0, 2.0, 3.0, 4.0], 1.0), ([4.0, 4.0, 4.0, 4.0], 1.5), ([1.0, 1.0, 2.0, 2.0], 1.4)]:
        optimizer.observe(torch.tensor(local), mean)
        variance = sum(local) / 3 - 4 / 3 * mean
        s2, mu2 = theta * s2 + (1 - theta) * variance, theta * mu2 + (1 - theta) * (mean - variance / 4)
        assert optimizer.gain == pytest.approx((s2 + mu2) / (s2 / 4 + mu2))
    before = optimizer.gain
    optimizer.observe([float("nan")] * 4, 1.0)  # says nothing: the last gain stays
    optimizer.observe([float("inf")] * 4, float("inf"))
    assert optimizer.gain == before
    assert AdaScale(optimizer.optimizer, scale=2000).smoothing == 0.0


def test_state_goes_on():
    w = nn.Parameter(torch.ones(3))
    w.grad = torch.ones(3)
    optimizer = AdaScale(torch.optim.SGD([w], lr=0.1, momentum=0.9), scale=2)
    optimizer.observe([5.0, 5.0], 3.0)
    optimizer.step()
    state = copy.deepcopy(optimizer.state_dict())
    other = AdaScale(torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.7, momentum=0.9), scale=2)
    other.load_state_dict(state)
    assert (other.clock, other.gain, other.param_groups[0]["lr"]) == (optimizer.clock, optimizer.gain, 0.1)
    optimizer.observe([1.0, 1.0], 0.7)
    other.observe([1.0, 1.0], 0.7)
    assert other.gain == optimizer.gain
    other.load_state_dict(torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.2).state_dict())
    assert other.clock == 0.0 and other.gain == 1.0


def test_wrong_arguments():
    inner = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    with pytest.raises(RecipeError, match="3 squared norms, one per worker, got 2"):
        AdaScale(inner, scale=3).observe([1.0, 1.0], 1.0)
    for options in ({"scale": 0}, {"scale": 2, "smoothing": 1.0}):
        with pytest.raises(RecipeError, match="expected"):
            AdaScale(inner, **options)
    with pytest.raises(RecipeError, match="torch optimizer to wrap"):
        AdaScale(nn.Linear(1, 1), scale=2)


@workers(2)
def test_ddp_measures_what_the_workers_gradients_say():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    alone = copy.deepcopy(model)
    wrapped = DistributedDataParallel(model, bucket_cap_mb=1e-4)  # several buckets
    optimizer = AdaScale(torch.optim.SGD(wrapped.parameters(), lr=0.1), scale=2, smoothing=0.0)
    optimizer.watch(wrapped)
    reference = AdaScale(torch.optim.SGD(alone.parameters(), lr=0.1), scale=2, smoothing=0.0)
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        shards = torch.randn(2, 6, 4, generator=generator, dtype=torch.float64)
        optimizer.zero_grad()
        wrapped(shards[dist.get_rank()]).square().mean().backward()
        optimizer.step()
        gradients = []
        for shard in shards:  # both workers in one process
            alone.zero_grad()
            alone(shard).square().mean().backward()
            gradients.append([p.grad.clone() for p in alone.parameters()])
        mean = [sum(pair) / 2 for pair in zip(*gradients, strict=True)]
        for p, g in zip(alone.parameters(), mean, strict=True):
            p.grad = g
        local = [sum(float(g.square().sum()) for g in one) for one in gradients]
        reference.observe(local, sum(float(g.square().sum()) for g in mean))
        reference.step()
        assert optimizer.gain == pytest.approx(reference.gain, rel=1e-5) and optimizer.gain > 1.0
    for p, q in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
