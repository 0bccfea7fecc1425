from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from rueda.optim import LAMB, NonFiniteError
from rueda.optim.engine import host

PATHS = {"host": {}, "lanes": {"fused": False}, "lanes-skip": {"fused": False, "nonfinite": "skip"}}


def weights(*shapes: tuple[int, ...]) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    params = [nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64)) for shape in shapes]
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator, dtype=torch.float64)
    return params


@pytest.mark.parametrize("path", PATHS)
def test_a_layer_moves_by_the_rate_times_its_norm(path):
    params = weights((6, 4), (300, 400))
    before = [p.detach().clone() for p in params]
    LAMB(params, lr=0.01, **PATHS[path]).step()
    for p, old in zip(params, before, strict=True):
        assert float((p - old).detach().norm()) == pytest.approx(0.01 * float(old.norm()), rel=1e-12)


def test_other_implementations_are_options_and_differ():
    """Clamping the weight norm at 10 and leaving out the bias correction change how far a layer moves."""
    moved = {}
    for name, options in {"paper": {}, "clamped": {"phi": (0.0, 10.0)}, "no debias": {"debias": False}}.items():
        (p,) = weights((50, 40))  # |w| is about 45
        old = p.detach().clone()
        LAMB([p], lr=0.01, weight_decay=0.5, **options).step()
        moved[name] = (p.detach() - old) / 0.01
    assert float(moved["clamped"].norm()) == pytest.approx(10.0)
    assert float(moved["paper"].norm()) == pytest.approx(44.9, abs=1.0)
    direction = torch.dot(moved["paper"].view(-1), moved["no debias"].view(-1))
    cosine = float(direction / moved["paper"].norm() / moved["no debias"].norm())
    assert cosine < 0.999  # without it the update is sqrt(10) times as long against the decay


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("limit", [0.5, 1e6])
def test_max_grad_norm_is_torchs_clipping_with_the_gradients_left_as_they_were(path, limit):
    mine, other = weights((6, 4), (7,), (300, 300)), weights((6, 4), (7,), (300, 300))
    optimizer = LAMB(mine, lr=0.01, max_grad_norm=limit, eps=0.1, **PATHS[path])  # eps: so that a scale shows
    reference = LAMB(other, lr=0.01, eps=0.1, **PATHS[path])
    kept = [p.grad.clone() for p in mine]
    for _ in range(3):
        optimizer.step()
        for p, gradient in zip(other, kept, strict=True):
            p.grad = gradient.clone()
        nn.utils.clip_grad_norm_(other, limit)
        reference.step()
    for p, q, gradient in zip(mine, other, kept, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-12)
        assert torch.equal(p.grad, gradient)


def test_max_grad_norm_with_nan_skips_only_the_tensor_to_blame():
    params = weights((6, 4), (5, 5))
    before = copy.deepcopy(params)
    params[0].grad[0, 0] = torch.nan
    with pytest.raises(NonFiniteError, match="in 1 tensor"):
        LAMB(params, lr=0.01, max_grad_norm=1.0).step()
    assert torch.equal(params[0], before[0]) and not torch.equal(params[1], before[1])
    assert params[1].isfinite().all()


def test_decay_that_cancels_the_update_is_measured_not_summed():
    """Large float32 tensors get |r + d w| from three sums, which is worthless where the two cancel."""
    size = host.chunk() + 8
    generator = torch.Generator().manual_seed(0)
    sign = torch.randn(size, 1, generator=generator).sign()
    w = nn.Parameter((sign * (1.0 + 1e-4 * torch.randn(size, 1, generator=generator))).float())
    w.grad = -sign  # Adam's first update is -sign, the decay +w
    exact = (w.detach().double() - sign.double() / (1.0 + 1e-6)).norm()
    expected = w.detach().double() * 1.0
    optimizer = LAMB([w], lr=1e-3, weight_decay=1.0)
    old = w.detach().clone()
    optimizer.step()
    moved = (w.detach() - old).double().norm()
    assert exact < 1e-3 * expected.norm()
    assert float(moved) == pytest.approx(1e-3 * float(expected.norm()), rel=1e-2)


def test_a_weight_that_is_not_finite_is_not_spread():
    params = weights((6, 4), (300, 300), (5, 5))
    with torch.no_grad():
        params[0][0, 0] = torch.inf
        params[1][0, 0] = torch.nan
    before = copy.deepcopy(params)
    with pytest.raises(NonFiniteError, match="in 2 tensor"):
        LAMB(params, lr=0.01, weight_decay=0.1).step()
    torch.testing.assert_close(params[0], before[0], rtol=0, atol=0)
    torch.testing.assert_close(params[1], before[1], rtol=0, atol=0, equal_nan=True)
    with torch.no_grad():
        params[0][0, 0], params[1][0, 0] = 1.0, 1.0
    LAMB(params, lr=0.01, weight_decay=0.1).step()
    assert all(p.isfinite().all() for p in params)


def test_names_are_reported_where_groups_carry_them():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    model[1].weight.grad.fill_(torch.nan)
    with pytest.raises(NonFiniteError, match=r"first 1\.weight \(2x2\).*lower the learning rate"):
        LAMB(model.named_parameters(), lr=0.1).step()
