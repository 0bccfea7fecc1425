"""Ghost batch norm against torch's batch norm, called on every chunk."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness import workers
from rueda.errors import RecipeError
from rueda.nn import GhostBatchNorm1d, GhostBatchNorm2d, GhostBatchNorm3d, ghost_kernels, ghost_rows
from rueda.nn.ghost_sizes import ghost_sizes

KINDS: dict[str, tuple[Any, Any, tuple[int, ...]]] = {
    "1d flat": (GhostBatchNorm1d, nn.BatchNorm1d, ()),
    "1d": (GhostBatchNorm1d, nn.BatchNorm1d, (7,)),
    "2d": (GhostBatchNorm2d, nn.BatchNorm2d, (5, 4)),
    "3d": (GhostBatchNorm3d, nn.BatchNorm3d, (3, 2, 4)),
}
NUM_CHANNELS = 6


def layout(x: Tensor, memory: str) -> Tensor:
    if memory == "contiguous":
        return x.contiguous()
    if memory == "channels last":
        return x.movedim(1, -1).contiguous().movedim(-1, 1)
    return x.repeat_interleave(2, 0)[::2]  # neither


def both(
    kind: str, batch: int, ghost: int, *, memory: str = "contiguous", dtype: torch.dtype = torch.float64, **options: Any
) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """Two training steps of either; outputs, gradients and buffers."""
    ghost_kind, torch_kind, pixels = KINDS[kind]
    options = {"dtype": dtype, **options}
    mine, chunked = ghost_kind(NUM_CHANNELS, ghost_batch=ghost, **options), torch_kind(NUM_CHANNELS, **options)
    torch.manual_seed(1)
    if mine.affine:
        with torch.no_grad():
            mine.weight.uniform_(0.5, 2.0)
            mine.bias.normal_()
    chunked.load_state_dict(mine.state_dict())
    results: list[list[Tensor | None]] = [[], []]
    for _ in range(2):
        x = layout(torch.randn(batch, NUM_CHANNELS, *pixels, dtype=dtype) * 3 + 2, memory)
        dy = torch.randn(batch, NUM_CHANNELS, *pixels, dtype=dtype)
        sizes = ghost_sizes(batch, ghost, x[0, 0].numel())
        for layer, result in ((mine, results[0]), (chunked, results[1])):
            leaf = x.detach().requires_grad_()
            y = layer(leaf) if layer is mine else torch.cat([layer(part) for part in leaf.split(list(sizes))])
            y.backward(dy)
            result += [y.detach(), leaf.grad]
    for layer, result in ((mine, results[0]), (chunked, results[1])):
        result += [each.grad for each in layer.parameters()]
        result += list(layer.buffers())
    return results[0], results[1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("memory", ["contiguous", "channels last", "neither"])
@pytest.mark.parametrize(("batch", "ghost"), [(24, 8), (26, 8), (25, 8), (8, 8), (5, 8)])
def test_equals_torch_on_every_chunk(kind: str, memory: str, batch: int, ghost: int) -> None:
    for mine, chunked in zip(*both(kind, batch, ghost, memory=memory), strict=True):
        torch.testing.assert_close(mine, chunked, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    "options",
    [{"momentum": None}, {"momentum": 0.7}, {"affine": False}, {"track_running_stats": False}, {"eps": 0.5}],
    ids=str,
)
def test_options(options: dict[str, Any]) -> None:
    for mine, chunked in zip(*both("2d", 26, 8, **options), strict=True):
        torch.testing.assert_close(mine, chunked, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("memory", ["contiguous", "channels last"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 0.05)])
def test_lower_precisions(memory: str, dtype: torch.dtype, tolerance: float) -> None:
    for mine, chunked in zip(*both("2d", 26, 8, memory=memory, dtype=dtype), strict=True):
        assert mine is not None and chunked is not None
        torch.testing.assert_close(mine, chunked, rtol=tolerance, atol=tolerance)


def test_images_wider_than_a_cached_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ghost_rows, "_WIDEST_ROW", 10)
    for mine, chunked in zip(*both("2d", 26, 8), strict=True):
        torch.testing.assert_close(mine, chunked, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("memory", ["contiguous", "channels last"])
@pytest.mark.parametrize("limits", [["_GROUP_BYTES"], ["_ROW"], ["_ROW", "_BLOCK_BYTES"]], ids=str)
def test_cache_sizes_change_nothing(monkeypatch: pytest.MonkeyPatch, memory: str, limits: list[str]) -> None:
    together = both("2d", 26, 4, memory=memory)[0]
    for limit in limits:
        monkeypatch.setattr(ghost_rows, limit, 1)
    for one, other in zip(together, both("2d", 26, 4, memory=memory)[0], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("memory", ["contiguous", "channels last"])
def test_statistics_survive_a_large_mean(memory: str) -> None:
    torch.manual_seed(0)
    x = layout(torch.randn(64, 3, 8, 8) + 1000.0, memory)
    layer = GhostBatchNorm2d(3, ghost_batch=32, momentum=1.0)
    layer(x)
    assert layer.running_var is not None
    torch.testing.assert_close(layer.running_var, x[32:].double().var((0, 2, 3)).float(), rtol=1e-5, atol=0)


def test_other_devices_take_the_vectorised_route() -> None:
    torch.manual_seed(0)
    x = torch.randn(26, 4, 3, 2, dtype=torch.float64, requires_grad=True)
    weight, bias = torch.rand(4, dtype=torch.float64), torch.rand(4, dtype=torch.float64)
    sizes, dy = [8, 8, 8, 2], torch.randn_like(x)
    y, mean, variance, _ = ghost_kernels.vectorised(x, weight.requires_grad_(), bias.requires_grad_(), sizes, 1e-5)
    with torch.no_grad():
        other, other_mean, other_variance = ghost_rows.forward_rows(x, weight, bias, sizes, 1e-5)
    torch.testing.assert_close([y, mean, variance], [other, other_mean, other_variance])
    inverse = torch.rsqrt(variance + 1e-5)
    expected = torch.autograd.grad(y, [x, weight, bias], dy)
    with torch.no_grad():
        for backward in (ghost_kernels._backward_vectorised, ghost_rows.backward_rows):
            torch.testing.assert_close(list(backward(dy, x, weight, mean, inverse, sizes)), list(expected))


@pytest.mark.parametrize("memory", ["contiguous", "channels last"])
def test_first_and_second_derivative(memory: str) -> None:
    torch.manual_seed(0)
    layer = GhostBatchNorm2d(2, ghost_batch=3, dtype=torch.float64, track_running_stats=False)
    x = layout(torch.randn(7, 2, 2, 2, dtype=torch.float64), memory).requires_grad_()

    def run(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.func.functional_call(layer, {"weight": weight, "bias": bias}, (x,))

    inputs = (x, layer.weight, layer.bias)
    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs)


def test_memory_layout_is_kept() -> None:
    x = torch.randn(16, 4, 5, 6).contiguous(memory_format=torch.channels_last).requires_grad_()
    y = GhostBatchNorm2d(4, ghost_batch=4)(x)
    assert y.is_contiguous(memory_format=torch.channels_last)
    (dx,) = torch.autograd.grad(y.sum(), x)  # an expanded gradient, which has no memory of its own
    assert dx.is_contiguous(memory_format=torch.channels_last)


def test_evaluation_and_state_are_those_of_batch_norm() -> None:
    mine, plain = GhostBatchNorm2d(4, ghost_batch=4), nn.BatchNorm2d(4)
    mine(torch.randn(16, 4, 3, 3))
    stored = io.BytesIO()
    torch.save(mine.state_dict(), stored)
    stored.seek(0)
    plain.load_state_dict(torch.load(stored))
    mine.load_state_dict(plain.state_dict())
    x = torch.randn(10, 4, 3, 3)
    assert torch.equal(mine.eval()(x), plain.eval()(x))
    untracked = GhostBatchNorm2d(4, ghost_batch=4, track_running_stats=False).eval()
    assert torch.equal(untracked(x), nn.BatchNorm2d(4, track_running_stats=False).eval()(x))


def test_autocast_and_deep_copies() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), GhostBatchNorm2d(4, ghost_batch=4))
    twin = copy.deepcopy(model)
    x = torch.randn(16, 1, 6, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = model(x)
    y.float().square().mean().backward()
    assert y.dtype == torch.bfloat16
    assert all(each.grad is not None and each.grad.dtype == torch.float32 for each in model.parameters())
    assert model[1].running_mean.dtype == torch.float32
    assert int(twin[1].num_batches_tracked) == 0 and int(model[1].num_batches_tracked) == 4
    torch.testing.assert_close(twin(x), y.float(), rtol=0.05, atol=0.05)


def test_function_transforms() -> None:
    torch.manual_seed(0)
    layer = GhostBatchNorm1d(3, ghost_batch=4, track_running_stats=False, dtype=torch.float64)
    x = torch.randn(10, 3, dtype=torch.float64)

    def loss(weight: Tensor) -> Tensor:
        return torch.func.functional_call(layer, {"weight": weight}, (x,)).pow(3).sum()

    (expected,) = torch.autograd.grad(loss(layer.weight), layer.weight)
    torch.testing.assert_close(torch.func.grad(loss)(layer.weight.detach()), expected)


def test_compiles() -> None:
    torch.manual_seed(0)
    eager = GhostBatchNorm2d(4, ghost_batch=4)
    traced = torch.compile(copy.deepcopy(eager), backend="aot_eager", fullgraph=True)
    x = torch.randn(10, 4, 3, 3, requires_grad=True)
    one, other = eager(x), traced(x)
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    grads = [torch.autograd.grad(y.pow(3).sum(), x)[0] for y in (one, other)]
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-4, atol=1e-4)
    assert torch.allclose(eager.running_var, traced.running_var)  # type: ignore[arg-type]


@pytest.mark.parametrize("ghost", [1, 0, -4, 2.5, True, None])
def test_bad_ghost_sizes_are_refused(ghost: Any) -> None:
    with pytest.raises(RecipeError, match="ghost_batch: expected a whole number of at least 2"):
        GhostBatchNorm2d(4, ghost_batch=ghost)


def test_bad_inputs_are_refused_as_by_torch() -> None:
    with pytest.raises(ValueError, match="expected 4D input"):
        GhostBatchNorm2d(4, ghost_batch=4)(torch.randn(16, 4))
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        GhostBatchNorm1d(4, ghost_batch=4)(torch.randn(1, 4))


@workers(2)
def test_under_ddp() -> None:
    """Each worker normalises its own ghosts, and the gradients are averaged."""
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), GhostBatchNorm1d(4, ghost_batch=4), nn.Linear(4, 1)).double()
    alone = copy.deepcopy(model)
    x = torch.randn(2, 8, 3, dtype=torch.float64)
    wrapped = nn.parallel.DistributedDataParallel(model)
    wrapped(x[rank]).square().mean().backward()
    sum(alone(part).square().mean() for part in x).div(2).backward()
    for mine, expected in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, expected.grad)
