from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from rueda.errors import RecipeError
from rueda.optim import LARC, LARS, NonFiniteError

SHAPES = [(8, 5), (5,), (3, 2, 2)]


def make() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64)) for shape in SHAPES]


def fill(params, step: int) -> None:
    generator = torch.Generator().manual_seed(100 + step)
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("mode", ["clip", "scale"])
@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_equals_the_formula_in_float64_over_50_steps(mode, decay):
    lr, momentum, trust, eps = 0.02, 0.9, 0.02, 1e-8
    params = make()
    inner = torch.optim.SGD(params, lr=lr, momentum=momentum, weight_decay=decay)
    optimizer = LARC(inner, trust=trust, mode=mode, eps=eps)
    expected, buffers = [p.detach().numpy().copy() for p in params], [0.0] * len(params)
    factors = set()
    for step in range(50):
        fill(params, step)
        for i, p in enumerate(params):
            w, g = expected[i], p.grad.numpy().copy()
            if w.ndim > 1:
                norm = np.linalg.norm(w)
                local = trust * norm / (np.linalg.norm(g) + decay * norm + eps)
                factor = min(local / lr, 1.0) if mode == "clip" else local
                factors.add(factor == 1.0)
                g = factor * (g + decay * w)
            buffers[i] = momentum * buffers[i] + g
            expected[i] = w - lr * buffers[i]
        optimizer.step()
        assert inner.param_groups[0]["weight_decay"] == decay
    for p, target in zip(params, expected, strict=True):
        np.testing.assert_allclose(p.detach().numpy(), target, rtol=1e-10, atol=1e-10)
    assert factors == ({True, False} if mode == "clip" else {False})  # both sides of the clip were met


def test_scaling_sgd_is_lars_while_the_rate_stands_still():
    mine, other = make(), make()
    larc = LARC(torch.optim.SGD(mine, lr=0.3, momentum=0.9, weight_decay=0.01), trust=0.05, mode="scale", eps=0.0)
    lars = LARS(other, lr=0.3, weight_decay=0.01, trust=0.05)
    for step in range(20):
        for params, optimizer in ((mine, larc), (other, lars)):
            fill(params, step)
            optimizer.step()
    for p, q in zip(mine, other, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("inner", [torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop])
def test_a_trust_that_never_clips_is_the_inner_optimizer(inner):
    for options in ({}, {"weight_decay": 0.01}, {"weight_decay": 0.01, "maximize": True}):
        mine, other = make(), make()
        larc, plain = LARC(inner(mine, lr=0.01, **options), trust=1e6, adapt=True), inner(other, lr=0.01, **options)
        for step in range(5):
            for params, optimizer in ((mine, larc), (other, plain)):
                fill(params, step)
                optimizer.step()
        for p, q in zip(mine, other, strict=True):
            torch.testing.assert_close(p, q, rtol=1e-11, atol=1e-11)


def test_zero_norms_and_missing_gradients():
    zero, still, none = (nn.Parameter(torch.full((2, 2), v)) for v in (0.0, 1.0, 1.0))
    zero.grad, still.grad = torch.ones(2, 2), torch.zeros(2, 2)
    LARC(torch.optim.SGD([zero, still, none], lr=0.5)).step()
    assert torch.equal(zero, torch.full((2, 2), -0.5))
    assert torch.equal(still, torch.ones(2, 2)) and torch.equal(none, torch.ones(2, 2))


def test_not_finite():
    params = make()
    before = copy.deepcopy(params)
    fill(params, 0)
    params[0].grad[0, 0] = torch.nan
    with pytest.raises(NonFiniteError, match="in 1 tensor"):
        LARC(torch.optim.SGD(params, lr=0.1)).step()
    assert all(torch.equal(p, q) for p, q in zip(params, before, strict=True))  # nothing was stepped
    LARC(torch.optim.SGD(params, lr=0.1, momentum=0.9), nonfinite="skip").step()
    assert torch.equal(params[0], before[0]) and not torch.equal(params[1], before[1])


def test_is_an_optimizer_for_schedulers_states_and_groups():
    params = make()
    inner = torch.optim.SGD(params, lr=0.1, momentum=0.9)
    optimizer = LARC(inner)
    assert isinstance(optimizer, torch.optim.Optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    fill(params, 0)
    optimizer.step()
    scheduler.step()
    assert inner.param_groups[0]["lr"] == 0.05
    optimizer.zero_grad()
    assert all(p.grad is None for p in params)
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    assert len(inner.param_groups) == len(optimizer.param_groups) == 2
    state = copy.deepcopy(optimizer.state_dict())
    assert state.keys() == inner.state_dict().keys()
    optimizer.load_state_dict(state)
    assert optimizer.state is inner.state and optimizer.param_groups is inner.param_groups
    fill(params, 1)
    assert float(optimizer.step(lambda: torch.tensor(3.0))) == 3.0
    called = []
    optimizer.register_step_post_hook(lambda *_: called.append(1))
    optimizer.step()
    assert called == [1]
    twin = pickle.loads(pickle.dumps(LARC(torch.optim.SGD(make(), lr=0.1), trust=0.5)))
    assert twin.trust == 0.5 and twin.param_groups[0]["lr"] == 0.1
    assert repr(twin).startswith("LARC(SGD")


def test_wrong_arguments():
    with pytest.raises(RecipeError, match="LARC: expected a torch optimizer to wrap, got 'list'"):
        LARC([])
    for options in ({"mode": "cut"}, {"trust": 0.0}, {"eps": -1.0}, {"nonfinite": "no"}):
        with pytest.raises(RecipeError, match=next(iter(options))):
            LARC(torch.optim.SGD(make(), lr=0.1), **options)
