"""SyncBatchNorm through the core: the same numbers as one worker with the joined batch, also within a process set."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn

import rueda.hvd.torch as hvd
from harness import workers


def whole(count: int, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    return 3 + 2 * torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def reference(x: torch.Tensor, weights: torch.Tensor, momentum: float | None) -> tuple[nn.Module, torch.Tensor]:
    """One worker: torch's own batch norm on all examples; the loss is a weighted sum of the outputs."""
    layer = (nn.BatchNorm2d if x.dim() == 4 else nn.BatchNorm1d)(x.shape[1], momentum=momentum).double()
    nn.init.uniform_(layer.weight, generator=torch.Generator().manual_seed(9))
    x.requires_grad_(True)
    (layer(x) * weights).sum().backward()
    return layer, layer(x)


@pytest.mark.parametrize("shape", [(3,), (2, 4, 4)])
@pytest.mark.parametrize("momentum", [0.1, None])
@workers(3)
def test_the_numbers_of_one_worker(shape: tuple[int, ...], momentum: float | None) -> None:
    sizes = [5, 0, 3]  # uneven, and one worker has run out
    hvd.init()
    try:
        x, weights = whole(8, shape), whole(8, shape, seed=1)
        expected, _ = reference(x, weights, momentum)
        rank = hvd.rank()
        own = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
        mine = x.detach()[own].clone().requires_grad_(True)
        layer = hvd.SyncBatchNorm(shape[0], momentum=momentum).double()
        layer.weight.data.copy_(expected.weight.detach())
        (layer(mine) * weights[own]).sum().backward()
        close = {"rtol": 1e-9, "atol": 1e-9}
        torch.testing.assert_close(mine.grad, x.grad[own], **close)
        total = hvd.allreduce(torch.cat([layer.weight.grad, layer.bias.grad]), op=hvd.Sum)
        torch.testing.assert_close(total, torch.cat([expected.weight.grad, expected.bias.grad]), **close)
        fresh = type(expected)(shape[0], momentum=momentum).double()
        fresh(x.detach())
        torch.testing.assert_close(layer.running_mean, fresh.running_mean, **close)
        torch.testing.assert_close(layer.running_var, fresh.running_var, **close)
        layer.eval(), fresh.eval()
        fresh.weight.data.copy_(layer.weight.data)
        torch.testing.assert_close(layer(x.detach()), fresh(x.detach()), **close)  # alone, without the others
        assert pickle.loads(pickle.dumps(layer.state_dict())).keys() == fresh.state_dict().keys()
    finally:
        hvd.shutdown()


@workers(3)
def test_within_a_process_set() -> None:
    hvd.init()
    try:
        pair = hvd.add_process_set([0, 2])
        x = whole(6, (3,))
        own = x[2 * hvd.rank() : 2 * hvd.rank() + 2]
        layer = hvd.SyncBatchNorm(3, process_set=pair).double()
        if pair.included():
            joined = nn.BatchNorm1d(3).double()(torch.cat([x[:2], x[4:]]))
            y = layer(own)
            torch.testing.assert_close(y, joined[:2] if hvd.rank() == 0 else joined[2:], rtol=1e-9, atol=1e-9)
        hvd.barrier()
        hvd.remove_process_set(pair)
    finally:
        hvd.shutdown()


@workers(2)
def test_layers_that_differ_are_told_apart() -> None:
    hvd.init()
    try:
        with pytest.raises(hvd.HorovodInternalError, match=r"sync_batch_norm\.statistics"):
            hvd.SyncBatchNorm(2 + hvd.rank())(torch.randn(4, 2 + hvd.rank()))
    finally:
        hvd.shutdown()


@workers(2)
def test_beside_the_gradients_of_an_optimizer() -> None:
    """The layer's backward pass and the optimizer's exchanges run at the same time; all replicas stay equal."""
    hvd.init()
    try:
        torch.manual_seed(hvd.rank())
        model = nn.Sequential(
            nn.Conv2d(1, 8, 3), hvd.SyncBatchNorm(8), nn.ReLU(), nn.Conv2d(8, 8, 3), hvd.SyncBatchNorm(8), nn.Flatten(),
            nn.Linear(8 * 16, 2),
        )  # fmt: skip
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        for _ in range(8):
            optimizer.zero_grad()
            model(torch.randn(4, 1, 8, 8)).square().sum().backward()
            optimizer.step()
        for name, value in model.state_dict().items():
            first = hvd.broadcast(value, root_rank=0, name=name)
            assert torch.equal(first, value), name
    finally:
        hvd.shutdown()


def test_alone_it_is_plain_batch_norm() -> None:
    hvd.init()
    try:
        x = whole(6, (3,)).float()
        layer, plain = hvd.SyncBatchNorm(3), nn.BatchNorm1d(3)
        assert torch.equal(layer(x), plain(x))
        for name, value in plain.state_dict().items():
            assert torch.equal(layer.state_dict()[name], value)
        with pytest.raises(Exception, match="expected"):
            layer(torch.ones(3))
    finally:
        hvd.shutdown()
