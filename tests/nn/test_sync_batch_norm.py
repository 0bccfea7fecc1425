"""Batch norm over N workers' uneven batches against one worker's over the joined batch."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from harness import workers
from rueda.errors import DataError
from rueda.nn import to_sync_batch_norm
from rueda.world import current

LAYERS = {
    "1d flat": lambda **options: (nn.BatchNorm1d(3, **options), ()),
    "2d": lambda **options: (nn.BatchNorm2d(3, **options), (4, 5)),
    "3d": lambda **options: (nn.BatchNorm3d(3, **options), (2, 3, 2)),
}


def check(kind: str, sizes: list[int], group: dist.ProcessGroup | None = None, **options: object) -> None:
    world = current()
    plain, pixels = LAYERS[kind](dtype=torch.float64, **options)
    torch.manual_seed(0)
    if plain.affine:
        with torch.no_grad():
            plain.weight.uniform_(0.5, 2)
            plain.bias.normal_()
    mine, _ = LAYERS[kind](dtype=torch.float64, **options)
    mine.load_state_dict(plain.state_dict())
    mine = to_sync_batch_norm(mine, group)
    for step in range(2):
        x = torch.randn(sum(sizes), 3, *pixels, dtype=torch.float64) * 2 + torch.arange(sum(sizes)).view(
            -1, 1, *[1] * len(pixels)
        )
        dy = torch.randn_like(x)
        joined, local = x.clone().requires_grad_(), x.split(sizes)[world.rank].clone()
        if len(pixels) == 2 and step:
            local = local.contiguous(memory_format=torch.channels_last)
        local.requires_grad_()
        y, expected = mine(local), plain(joined)
        y.backward(dy.split(sizes)[world.rank])
        expected.backward(dy)
        assert joined.grad is not None
        for got, want in ((y, expected), (local.grad, joined.grad)):
            torch.testing.assert_close(got, want.split(sizes)[world.rank], rtol=1e-10, atol=1e-10)
    for got, want in zip(mine.parameters(), plain.parameters(), strict=True):
        assert got.grad is not None
        torch.testing.assert_close(world.all_reduce(got.grad), want.grad, rtol=1e-10, atol=1e-10)
    for got, want in zip(mine.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    assert torch.equal(mine.eval()(local), mine(local))


@workers(2)
@pytest.mark.parametrize("kind", LAYERS)
def test_two_uneven_workers(kind: str) -> None:
    check(kind, [5, 2])
    check(kind, [7, 0])  # a worker without examples
    check(kind, [1, 1], momentum=None)
    check(kind, [3, 4], affine=False)
    check(kind, [3, 4], track_running_stats=False, eps=0.1)


@workers(3)
def test_three_uneven_workers() -> None:
    for kind in LAYERS:
        check(kind, [5, 2, 1])


@workers(3)
def test_a_process_group_of_some() -> None:
    world = current()
    group = dist.new_group([0, 1])
    if world.rank < 2:
        layer = to_sync_batch_norm(nn.BatchNorm1d(1), group)
        layer(torch.tensor([[1.0], [3.0]]) + 4 * world.rank)
        torch.testing.assert_close(layer.running_mean, torch.tensor([0.4]))
    world.barrier()


@workers(2)
def test_refusals_and_low_precision() -> None:
    world = current()
    layer = to_sync_batch_norm(nn.BatchNorm1d(2))
    with pytest.raises(DataError, match="at least 2 values per channel, got 1"):
        layer(torch.randn(1 - world.rank, 2))
    with pytest.raises(DataError, match=r"expected \[N, C"):
        layer(torch.randn(2))
    x = torch.randn(4, 2, dtype=torch.bfloat16, requires_grad=True)
    y = layer(x)
    y.sum().backward()
    assert y.dtype == torch.bfloat16 and x.grad is not None and x.grad.dtype == torch.bfloat16
    again = torch.randn(4, 2, requires_grad=True)
    (first,) = torch.autograd.grad(layer(again).pow(2).sum(), again, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


def test_alone_it_is_batch_norm() -> None:
    x = torch.randn(8, 3, 2, 2)
    plain, mine = nn.BatchNorm2d(3), to_sync_batch_norm(nn.BatchNorm2d(3))
    assert torch.equal(mine(x), plain(x))
    assert torch.equal(mine.running_var, plain.running_var)
