"""One table for LARS, LAMB and NovoGrad: each against its paper's update in float64, and as a torch citizen."""

from __future__ import annotations

import copy
import io
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rueda.errors import RecipeError
from rueda.optim import LAMB, LARS, NonFiniteError, NovoGrad

Step = Callable[[np.ndarray, np.ndarray, dict[str, Any]], np.ndarray]
SHAPES = [(8, 5), (5,), (3, 2, 2, 2), (1, 7), (70_000, 1)]  # the last is larger than one chunk


# The papers' updates, one tensor at a time, written apart from the package.
def lars(lr=0.3, m=0.9, beta=0.0, eta=0.05, clipped=False, nesterov=False) -> Step:
    def step(w, g, s):
        rate, decay = lr, beta if w.ndim > 1 else 0.0
        norm_w, norm_g = np.linalg.norm(w), np.linalg.norm(g)
        if w.ndim > 1 and norm_w > 0 and norm_g > 0:
            local = eta * norm_w / (norm_g + decay * norm_w)
            rate = min(lr, local) if clipped else lr * local
        d = rate * (g + decay * w)
        s["v"] = m * s.get("v", 0.0) + d
        return w - (d + m * s["v"] if nesterov else s["v"])

    return step


def lamb(lr=0.02, b1=0.9, b2=0.999, eps=1e-6, decay=0.0, debias=True, low=None, high=None) -> Step:
    def step(w, g, s):
        s["t"] = s.get("t", 0) + 1
        s["m"] = b1 * s.get("m", 0.0) + (1 - b1) * g
        s["v"] = b2 * s.get("v", 0.0) + (1 - b2) * g * g
        m, v = s["m"], s["v"]
        if debias:
            m, v = m / (1 - b1 ** s["t"]), v / (1 - b2 ** s["t"])
        u = m / (np.sqrt(v) + eps)
        if w.ndim < 2:
            return w - lr * u
        u = u + decay * w
        phi = np.linalg.norm(w)
        if high is not None:
            phi = np.clip(phi, low, high)
        return w - lr * (phi / np.linalg.norm(u) if phi > 0 and np.linalg.norm(u) > 0 else 1.0) * u

    return step


def novograd(lr=0.05, b1=0.95, b2=0.98, eps=1e-8, decay=0.0, averaging=False) -> Step:
    def step(w, g, s):
        square = np.sum(g * g)
        s["v"] = square if "v" not in s else b2 * s["v"] + (1 - b2) * square
        fresh = g / (np.sqrt(s["v"]) + eps) + (decay * w if w.ndim > 1 else 0.0)
        s["m"] = b1 * s.get("m", 0.0) + (1 - b1 if averaging else 1.0) * fresh
        return w - lr * s["m"]

    return step


CASES = {
    "lars": (LARS, {"lr": 0.3, "trust": 0.05}, lars()),
    "lars-decay": (LARS, {"lr": 0.3, "trust": 0.05, "weight_decay": 0.01}, lars(beta=0.01)),
    "lars-no-momentum": (LARS, {"lr": 0.3, "trust": 0.05, "momentum": 0.0}, lars(m=0.0)),
    "lars-nesterov": (LARS, {"lr": 0.3, "trust": 0.05, "weight_decay": 0.01, "nesterov": True},
                      lars(beta=0.01, nesterov=True)),
    "lars-clipped": (LARS, {"lr": 0.02, "trust": 0.05, "form": "clipped"}, lars(lr=0.02, clipped=True)),
    "lamb": (LAMB, {"lr": 0.02}, lamb()),
    "lamb-decay": (LAMB, {"lr": 0.02, "weight_decay": 0.1}, lamb(decay=0.1)),
    "lamb-no-debias": (LAMB, {"lr": 0.02, "debias": False}, lamb(debias=False)),
    "lamb-phi": (LAMB, {"lr": 0.02, "weight_decay": 0.1, "phi": (0.5, 3.0)}, lamb(decay=0.1, low=0.5, high=3.0)),
    "novograd": (NovoGrad, {"lr": 0.05}, novograd()),
    "novograd-decay": (NovoGrad, {"lr": 0.05, "weight_decay": 0.01}, novograd(decay=0.01)),
    "novograd-averaging": (NovoGrad, {"lr": 0.05, "weight_decay": 0.01, "grad_averaging": True},
                           novograd(decay=0.01, averaging=True)),
}  # fmt: skip
PLAIN = ("lars-decay", "lamb-decay", "novograd-decay")
PATHS = {
    "host": {},
    "host-skip": {"nonfinite": "skip"},
    "lanes": {"fused": False},
    "lanes-skip": {"fused": False, "nonfinite": "skip"},
}


def make(seed=0, dtype=torch.float64, shapes=tuple(SHAPES)) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(s, generator=generator, dtype=torch.float64).to(dtype)) for s in shapes]


def fill(params, step: int, scale=1.0) -> None:
    generator = torch.Generator().manual_seed(1000 + step)
    for p in params:
        p.grad = (scale * torch.randn(p.shape, generator=generator, dtype=torch.float64)).to(p.dtype)


def walk(optimizer, params, steps: range, scale=1.0) -> list[torch.Tensor]:
    for step in steps:
        fill(params, step, scale)
        optimizer.step()
    return [p.detach().clone() for p in params]


def assert_equal(actual, expected) -> None:
    for a, b in zip(actual, expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("case", CASES)
def test_equals_the_paper_over_50_steps(case, path):
    kind, arguments, formula = CASES[case]
    params = make()
    expected, states = [p.detach().numpy().copy() for p in params], [{} for _ in params]
    optimizer = kind(params, **arguments, **PATHS[path])
    for number in range(50):
        fill(params, number)
        for i, p in enumerate(params):
            expected[i] = formula(expected[i], p.grad.numpy(), states[i])
        optimizer.step()
    for p, target in zip(params, expected, strict=True):
        np.testing.assert_allclose(p.detach().numpy(), target, rtol=1e-10, atol=1e-10)


TWINS = {
    "lars": (LARS, {"lr": 0.1, "weight_decay": 0.01}, torch.optim.SGD,
             {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    "lars-nesterov": (LARS, {"lr": 0.1, "nesterov": True}, torch.optim.SGD,
                      {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "lamb": (LAMB, {"lr": 0.01, "weight_decay": 0.1}, torch.optim.AdamW,
             {"lr": 0.01, "weight_decay": 0.1, "eps": 1e-6}),
}  # fmt: skip


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("case", TWINS)
def test_without_adaptation_is_torchs_own(case, path, maximize):
    kind, arguments, twin, theirs = TWINS[case]
    mine, other = make(), make()
    optimizer = kind(mine, **arguments, adapt=False, maximize=maximize, **PATHS[path])
    for a, b in zip(
        walk(optimizer, mine, range(20)), walk(twin(other, **theirs, maximize=maximize), other, range(20)), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


def test_novograd_of_unit_gradients_is_momentum_sgd():
    mine, other = make(), make()
    optimizers = NovoGrad(mine, lr=0.1, eps=1e-30), torch.optim.SGD(other, lr=0.1, momentum=0.95)
    for step in range(20):
        for params, optimizer in zip((mine, other), optimizers, strict=True):
            fill(params, step)
            for p in params:
                p.grad /= p.grad.norm()
            optimizer.step()
    for a, b in zip(mine, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("case", CASES)
def test_maximize_descends_the_negated_gradient(case, path):
    kind, arguments, _ = CASES[case]
    up, down = make(), make()
    climbing = kind(up, **arguments, maximize=True, **PATHS[path])
    assert_equal(walk(climbing, up, range(5), scale=-1.0), walk(kind(down, **arguments, **PATHS[path]), down, range(5)))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("case", CASES)
def test_a_saved_state_continues_bit_for_bit(case, path):
    kind, arguments, _ = CASES[case]
    params = make(dtype=torch.float32)
    optimizer = kind(params, **arguments, **PATHS[path])
    walk(optimizer, params, range(3))
    file = io.BytesIO()
    torch.save({"weights": params, "state": optimizer.state_dict()}, file)
    expected = walk(optimizer, params, range(3, 6))

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    again = [nn.Parameter(p.detach()) for p in saved["weights"]]
    resumed = kind(again, **arguments, **PATHS[path])
    resumed.load_state_dict(saved["state"])
    assert_equal(walk(resumed, again, range(3, 6)), expected)


@pytest.mark.parametrize("case", PLAIN)
def test_copies_and_pickles_go_on_alike(case):
    kind, arguments, _ = CASES[case]
    params = make()
    optimizer = kind(params, **arguments)
    walk(optimizer, params, range(2))
    for twin in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        theirs = twin.param_groups[0]["params"]
        before = copy.deepcopy(optimizer)
        assert_equal(walk(twin, theirs, range(2, 4)), walk(before, before.param_groups[0]["params"], range(2, 4)))


@pytest.mark.parametrize("case", PLAIN)
def test_a_state_moves_between_the_paths(case):
    kind, arguments, _ = CASES[case]
    params = make()
    host = kind(params, **arguments)
    walk(host, params, range(3))
    others = [nn.Parameter(p.detach().clone()) for p in params]
    lanes = kind(others, **arguments)
    lanes.load_state_dict(copy.deepcopy(host.state_dict()))
    for group in lanes.param_groups:
        group["fused"] = False
    for a, b in zip(walk(host, params, range(3, 6)), walk(lanes, others, range(3, 6)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("case", PLAIN)
def test_groups_have_their_own_numbers(case, path):
    kind, arguments, _ = CASES[case]
    params, first, second = make(), make()[:2], make()[2:]
    groups = [{"params": params[:2], "lr": 0.001}, {"params": params[2:], "weight_decay": 0.5}]
    together = kind(groups, **arguments, **PATHS[path])
    expected = walk(kind(first, **{**arguments, "lr": 0.001}, **PATHS[path]), first, range(1))
    generator = torch.Generator().manual_seed(1000)
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator, dtype=torch.float64)
    for p, q in zip(second, params[2:], strict=True):
        p.grad = q.grad.clone()
    together.step()
    kind(second, **{**arguments, "weight_decay": 0.5}, **PATHS[path]).step()
    assert_equal([p.detach() for p in params], expected + [p.detach() for p in second])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("case", PLAIN)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_gradient_that_is_not_finite_leaves_its_tensor_alone(case, path, bad):
    kind, arguments, _ = CASES[case]
    params, good = make(), make()
    arguments = {**arguments, **PATHS[path]}
    optimizer, reference = kind(params, **arguments), kind(good, **arguments)
    walk(optimizer, params, range(2))
    walk(reference, good, range(2))
    kept = [p.detach().clone() for p in params]
    state = copy.deepcopy([optimizer.state[p] for p in params])
    fill(params, 2)
    fill(good, 2)
    for index in (0, 1, 4):  # small, left out, large
        params[index].grad.view(-1)[-1] = bad
    if arguments.get("nonfinite") == "skip":
        optimizer.step()
    else:
        with pytest.raises(
            NonFiniteError, match=r"nan or inf in 3 tensor\(s\), first number [01] of group 0 \((8x5|5)\)"
        ):
            optimizer.step()
    reference.step()
    for index in (0, 1, 4):
        assert torch.equal(params[index], kept[index])
        if (kind, path) == (LAMB, "host") and index != 1:  # starts anew, for speed: see lamb_host
            assert all(not value.any() for value in optimizer.state[params[index]].values())
            continue
        for name, value in state[index].items():
            assert (
                value == optimizer.state[params[index]][name]
                if isinstance(value, float)
                else torch.equal(value, optimizer.state[params[index]][name])
            ), name
    for index in (2, 3):
        assert torch.equal(params[index], good[index])
    walk(optimizer, params, range(3, 5))
    assert all(p.isfinite().all() for p in params)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("case", PLAIN)
def test_zero_weights_and_zero_gradients_stay_finite_and_move_as_if_left_out(case, path):
    kind, arguments, _ = CASES[case]
    params = [nn.Parameter(torch.zeros(3, 3)), nn.Parameter(torch.ones(3, 3)), nn.Parameter(torch.ones(2, 2))]
    twin = nn.Parameter(torch.zeros(3, 3))
    params[0].grad, params[1].grad = torch.ones(3, 3), torch.zeros(3, 3)  # the third has none
    twin.grad = torch.ones(3, 3)
    optimizer = kind(params, **arguments, **PATHS[path])
    optimizer.step()
    kind([twin], **arguments, adapt=False, **PATHS[path]).step()
    torch.testing.assert_close(params[0], twin)
    assert all(p.isfinite().all() for p in params)
    assert torch.equal(params[2], torch.ones(2, 2)) and params[2] not in optimizer.state


@pytest.mark.parametrize("case", PLAIN)
def test_half_precision_weights_keep_float32_state(case):
    kind, arguments, _ = CASES[case]
    for dtype in (torch.bfloat16, torch.float16):
        half, full = make(dtype=dtype), [nn.Parameter(p.detach().float()) for p in make(dtype=dtype)]
        optimizer, reference = kind(half, **arguments), kind(full, **arguments)
        for step in range(5):
            fill(half, step)
            for p, q in zip(half, full, strict=True):
                q.grad = p.grad.float()
                q.data.copy_(p)  # only the rounding of the weights is theirs
            optimizer.step()
            reference.step()
            for p, q in zip(half, full, strict=True):
                assert p.dtype == dtype
                torch.testing.assert_close(p, q.to(dtype), rtol=0.01, atol=1e-6)
        again = kind(half, **arguments)
        again.load_state_dict(optimizer.state_dict())
        for p in half:
            for name, value in optimizer.state[p].items():
                if isinstance(value, torch.Tensor) and value.dim():
                    assert value.dtype == again.state[p][name].dtype == torch.float32
                    assert torch.equal(value, again.state[p][name])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("case", PLAIN)
def test_memory_layout_does_not_matter(case, path):
    kind, arguments, _ = CASES[case]
    rows, last = make(shapes=[(4, 3, 2, 2)] * 3), make(shapes=[(4, 3, 2, 2)] * 3)
    for p in last:
        p.data = p.data.to(memory_format=torch.channels_last)
    first, second = (kind(params, **arguments, **PATHS[path]) for params in (rows, last))
    for step in range(4):
        fill(rows, step)
        for p, q in zip(last, rows, strict=True):
            p.grad = q.grad.clone() if step % 2 else q.grad.to(memory_format=torch.channels_last)
        first.step()
        second.step()
        if step == 2:  # the layout may change under way
            last[0].data = last[0].data.contiguous()
    for p, q in zip(rows, last, strict=True):
        torch.testing.assert_close(p, q.detach().contiguous(), rtol=1e-12, atol=1e-12)


def _halve_the_state(optimizer, params):
    for p in params:
        optimizer.state[p] = {k: v * 0.5 for k, v in optimizer.state[p].items()}


def _replace_a_buffer(optimizer, params):
    state = optimizer.state[params[0]]
    name = optimizer.buffer
    state[name] = state[name].t().contiguous().t()  # the same numbers, other strides


def _forget_one(optimizer, params):
    del optimizer.state[params[2]]


def _turn_a_weight(optimizer, params):
    params[0].data = params[0].data.t().contiguous().t()


def _reorder(optimizer, params):
    optimizer.param_groups[0]["params"].reverse()


def _adapt_all(optimizer, params):
    optimizer.param_groups[0]["adapt"] = True


CHANGES = [_halve_the_state, _replace_a_buffer, _forget_one, _turn_a_weight, _reorder, _adapt_all]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("case", PLAIN)
def test_what_changes_between_steps_is_noticed(case, change):
    kind, arguments, _ = CASES[case]
    results = []
    for forgets in (False, True):
        params = make()
        optimizer = kind(params, **arguments)
        walk(optimizer, params, range(4))
        assert optimizer._memos.of_group
        change(optimizer, params)
        if forgets:
            del optimizer._memos
        results.append(walk(optimizer, params, range(4, 7)))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("case", PLAIN)
def test_gradients_may_come_and_go_and_turn(case):
    kind, arguments, _ = CASES[case]
    results = []
    for forgets in (False, True):
        params = make()
        optimizer = kind(params, **arguments)
        for step in range(12):
            fill(params, step)
            if step % 4 == 1:
                params[0].grad = params[3].grad = None
            if step > 8:
                params[0].grad = params[0].grad.t().contiguous().t() if params[0].grad is not None else None
            optimizer.step()
            if forgets:
                del optimizer._memos
        results.append([p.detach().clone() for p in params])
    assert_equal(*results)


@pytest.mark.parametrize("case", PLAIN)
def test_citizenship(case):
    kind, arguments, _ = CASES[case]
    model = nn.Linear(3, 2)
    optimizer = kind(model.parameters(), **arguments)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(4, 3)).square().mean()
        loss.backward()
        return loss.detach()

    before = float(closure())
    assert float(optimizer.step(closure)) == before
    assert float(closure()) < before
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == arguments["lr"] / 2
    optimizer.zero_grad(set_to_none=False)
    assert all(torch.equal(p.grad, torch.zeros_like(p)) for p in model.parameters())
    optimizer.zero_grad()
    assert all(p.grad is None for p in model.parameters())
    assert optimizer.step() is None
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2, 2))], "lr": 0.5})
    assert optimizer.param_groups[1]["weight_decay"] == arguments["weight_decay"]


@pytest.mark.parametrize("case", PLAIN)
def test_the_rate_may_be_a_tensor(case):
    kind, arguments, _ = CASES[case]
    for path in PATHS.values():
        params, others = make(), make()
        rate = torch.tensor(arguments["lr"], dtype=torch.float64)
        walked = walk(kind(others, **{**arguments, **path, "lr": rate}), others, range(3))
        for a, b in zip(walked, walk(kind(params, **arguments, **path), params, range(3)), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", PLAIN)
def test_capturable_keeps_all_numbers_in_tensors(case):
    kind, arguments, _ = CASES[case]
    params, others = make(), make()
    optimizer = kind(params, **arguments, capturable=True, nonfinite="skip")
    for a, b in zip(walk(optimizer, params, range(4)), walk(kind(others, **arguments), others, range(4)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)
    kept = [dict(optimizer.state[p]) for p in params]
    walk(optimizer, params, range(4, 5))
    for p, state in zip(params, kept, strict=True):  # a captured graph reads and writes the same memory again
        assert all(optimizer.state[p][name] is value for name, value in state.items())


@pytest.mark.parametrize("case", PLAIN)
def test_sparse_gradients_are_refused(case):
    kind, arguments, _ = CASES[case]
    embedding = nn.Embedding(5, 2, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(RecipeError, match=r"dense.*sparse one of shape \(5, 2\).*sparse=False"):
        kind(embedding.parameters(), **arguments).step()


@pytest.mark.parametrize("case", PLAIN)
def test_accumulated_gradients_step_as_one_large_batch(case):
    kind, arguments, _ = CASES[case]
    torch.manual_seed(0)
    data, target = torch.randn(8, 3, dtype=torch.float64), torch.randn(8, 2, dtype=torch.float64)
    models = [nn.Linear(3, 2, dtype=torch.float64) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [kind(model.parameters(), **arguments) for model in models]
    for _ in range(5):
        for model, optimizer, passes in zip(models, optimizers, (1, 4), strict=True):
            optimizer.zero_grad()
            for x, y in zip(data.chunk(passes), target.chunk(passes), strict=True):
                (nn.functional.mse_loss(model(x), y) / passes).backward()
            optimizer.step()
    for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        (LARS, {"lr": -1.0}, "lr: expected at least 0, got -1.0"),
        (LARS, {"lr": 0.1, "momentum": 1.0}, "momentum"),
        (LARS, {"lr": 0.1, "form": "slides"}, "'paper' or 'clipped', got 'slides'"),
        (LARS, {"lr": 0.1, "trust": 0.0}, "trust"),
        (LARS, {"lr": 0.1, "momentum": 0.0, "nesterov": True}, "nesterov"),
        (LARS, {"lr": 0.1, "foreach": True}, r"options: expected only adapt.*\['foreach'\]"),
        (LAMB, {"betas": (0.9, 1.0)}, "betas"),
        (LAMB, {"eps": 0.0}, "eps"),
        (LAMB, {"phi": (3.0, 1.0)}, "phi"),
        (LAMB, {"max_grad_norm": 0.0}, "max_grad_norm"),
        (LAMB, {"weight_decay": -0.1}, "weight_decay"),
        (LAMB, {"nonfinite": "ignore"}, "nonfinite"),
        (LAMB, {"capturable": True}, "'skip' with capturable"),
        (NovoGrad, {"betas": (-0.1, 0.9)}, "betas"),
        (NovoGrad, {"adapt": "some"}, "adapt"),
    ],
)
def test_wrong_arguments_are_told_in_one_line(kind, arguments, message):
    with pytest.raises(RecipeError, match=message) as caught:
        kind(make(), **arguments)
    assert "\n" not in str(caught.value)
