"""Gradient noise against theory. The seeds are fixed, so the bounds, of several standard errors, hold or do not."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from harness import workers
from rueda.errors import RecipeError
from rueda.optim.noise import add_noise, annealed_sigma, noise_weights, sigma_for, weighted_mean
from rueda.world import current

DRAWS = 20_000


def problem(num_examples: int = 8) -> tuple[nn.Linear, Tensor, Tensor, Tensor]:
    """Return a model, inputs, targets and the examples' gradients, [M, 3], one by one."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1, bias=False, dtype=torch.float64)
    x, y = torch.randn(num_examples, 3, dtype=torch.float64), torch.randn(num_examples, dtype=torch.float64)
    single = [
        torch.autograd.grad((model(a).squeeze() - b) ** 2, model.weight)[0].flatten() for a, b in zip(x, y, strict=True)
    ]
    return model, x, y, torch.stack(single)


def noisy_gradient(model: nn.Linear, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    losses = (model(x).squeeze(1) - y) ** 2
    return torch.autograd.grad(weighted_mean(losses, weights), model.weight)[0].flatten()


def test_weighted_losses_are_weighted_gradients() -> None:
    model, x, y, single = problem()
    weights = noise_weights(8, 1.5, seed=3, step=4).double()
    expected = (weights.unsqueeze(1) * single).mean(0)
    torch.testing.assert_close(noisy_gradient(model, x, y, weights), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sigma", [0.5, 2.6])
def test_mean_and_covariance_given_the_batch(sigma: float) -> None:
    model, x, y, single = problem()
    weights = torch.stack([noise_weights(8, sigma, seed=1, step=step) for step in range(DRAWS)]).double()
    gradients = weights @ single / 8  # [draws, 3], by the linearity tested above
    for step in (0, 77):
        torch.testing.assert_close(noisy_gradient(model, x, y, weights[step]), gradients[step])
    covariance = sigma**2 / 64 * single.T @ single
    error_of_mean = (covariance.diagonal() / DRAWS).sqrt()
    assert ((gradients.mean(0) - single.mean(0)).abs() < 4 * error_of_mean).all()
    # Of a Gaussian, var(empirical cov_ij) = (cov_ii cov_jj + cov_ij^2) / draws.
    variances = covariance.diagonal()
    error = ((variances[:, None] * variances + covariance**2) / DRAWS).sqrt()
    assert ((torch.cov(gradients.T) - covariance).abs() < 4 * error).all()
    wrong = (sigma * 1.1) ** 2 / 64 * single.T @ single  # the test can fail: a tenth more noise is seen
    assert ((torch.cov(gradients.T) - wrong).abs() > 4 * error).any()


def test_a_large_noisy_batch_scatters_as_a_small_one() -> None:
    """Sampling included: examples drawn anew, mean gradient small against a single one's."""
    generator = torch.Generator().manual_seed(0)
    base, large, draws = 16, 128, 6000
    sigma = sigma_for(large, base)

    def scatter(batch: int, sigma: float) -> float:
        examples = torch.randn(draws, batch, generator=generator) + 0.05  # one-dimensional gradients
        weights = torch.stack([noise_weights(batch, sigma, seed=2, step=step) for step in range(draws)])
        return float((examples * weights).mean(1).var())

    small, noisy, quiet = scatter(base, 0.0), scatter(large, sigma), scatter(large, 0.0)
    relative_error = 4 * math.sqrt(2 * 2 / draws)
    assert noisy / small == pytest.approx(1.0, abs=relative_error)
    assert quiet / small == pytest.approx(base / large, rel=relative_error)


@pytest.mark.parametrize(
    ("batch", "base", "factor", "sigma"),
    [(128, 128, 1, 0.0), (1024, 128, 1, math.sqrt(7)), (1024, 128, 2, 1.0), (1024, 128, 8**0.5, 0.0), (64, 128, 1, 0)],
)
def test_sigma_keeps_the_covariance(batch: int, base: int, factor: float, sigma: float) -> None:
    assert sigma_for(batch, base, rate_factor=factor) == pytest.approx(sigma)
    if sigma:
        assert factor**2 * (1 + sigma**2) / batch == pytest.approx(1 / base)


def test_draws_belong_to_seed_step_rank_and_part() -> None:
    keys = [
        {"seed": seed, "step": step, "rank": rank, "part": part}
        for seed in (0, 1) for step in (0, 1, 2) for rank in (0, 1, 2) for part in (0, 1)
    ]  # fmt: skip
    drawn = torch.stack([noise_weights(2000, 1.0, **key) for key in keys]) - 1
    again = torch.stack([noise_weights(2000, 1.0, **key) for key in keys]) - 1
    assert torch.equal(drawn, again)
    correlations = drawn @ drawn.T / 2000 - torch.eye(len(keys))
    off = correlations[~torch.eye(len(keys), dtype=torch.bool)]
    assert off.abs().max() < 5 / math.sqrt(2000)


@workers(2)
def test_workers_draw_their_own() -> None:
    world = current()
    mine = noise_weights(500, 1.0, seed=0, step=3, rank=world.rank)
    one, other = world.all_gather(mine)
    assert not torch.equal(one, other)
    assert torch.equal((one, other)[world.rank], mine)


# ---- additive ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("step", "eta", "gamma"), [(0, 0.3, 0.55), (99, 0.3, 0.55), (7, 1.0, 1.0)])
def test_additive_noise(step: int, eta: float, gamma: float) -> None:
    parameters = [nn.Parameter(torch.zeros(200, 100)), nn.Parameter(torch.zeros(77)), nn.Parameter(torch.zeros(5))]
    for each in parameters[:2]:
        each.grad = torch.ones_like(each)
    sigma = add_noise(parameters, step=step, eta=eta, gamma=gamma, seed=0)
    assert sigma == pytest.approx(math.sqrt(eta / (1 + step) ** gamma))
    assert parameters[2].grad is None
    assert parameters[0].grad is not None and parameters[1].grad is not None
    noise = parameters[0].grad.flatten() - 1
    assert abs(float(noise.mean())) < 4 * sigma / math.sqrt(20_000)
    assert float(noise.var()) == pytest.approx(sigma**2, rel=4 * math.sqrt(2 / 20_000))
    assert not torch.equal(noise[:77], parameters[1].grad - 1)


def test_additive_noise_is_shared_or_own_by_choice() -> None:
    def noise(**key: int | None) -> Tensor:
        parameter = nn.Parameter(torch.zeros(50))
        parameter.grad = torch.zeros(50)
        add_noise([parameter], eta=1.0, **key)  # type: ignore[arg-type]
        return parameter.grad

    assert torch.equal(noise(seed=0, step=1), noise(seed=0, step=1))
    assert torch.equal(noise(seed=0, step=1, rank=2), noise(seed=0, step=1, rank=2))
    assert not torch.equal(noise(seed=0, step=1, rank=0), noise(seed=0, step=1, rank=1))
    assert not torch.equal(noise(seed=0, step=1), noise(seed=0, step=1, rank=0))
    assert not torch.allclose(noise(seed=0, step=1), noise(seed=0, step=2))
    assert torch.equal(noise(seed=0, step=1) * 0, torch.zeros(50))


def test_no_noise_changes_nothing() -> None:
    parameter = nn.Parameter(torch.zeros(3))
    parameter.grad = torch.tensor([1.0, 2.0, 3.0])
    assert add_noise([parameter], step=5, eta=0.0, seed=0) == 0.0
    assert parameter.grad.tolist() == [1.0, 2.0, 3.0]
    assert noise_weights(4, 0.0, seed=0, step=0).tolist() == [1.0] * 4
    assert noise_weights(0, 1.0, seed=0, step=0).shape == (0,)


def test_mistakes_are_told() -> None:
    with pytest.raises(RecipeError, match="sigma: expected 0 or more"):
        noise_weights(4, -1.0, seed=0, step=0)
    with pytest.raises(RecipeError, match=r"one loss per example, shape \(4,\), got \(\)"):
        weighted_mean(torch.tensor(1.0), torch.ones(4))
    with pytest.raises(RecipeError, match="sigma_for: expected positive sizes"):
        sigma_for(0, 128)
    with pytest.raises(RecipeError, match="additive noise"):
        annealed_sigma(0, eta=-1.0)
