"""Rank r of a mesh of 1,024 ranks, alone, in sharded form and in data x tensor: start-up, memory, bytes of a step.

The process group is torch's own ``fake`` one: every collective returns at once and carries nothing, and every rank has
its subgroups. :class:`~rueda.measure.wire_bytes.WireBytes` counts what would have been carried.
"""

from __future__ import annotations

from typing import Any

import pytest

from harness import workers

WIDTH, LAYERS, RANKS = 1024, 2, 1024
PARAMETERS = LAYERS * (WIDTH * WIDTH + WIDTH)


def _as_rank(rank: int, use: Any) -> Any:
    """Be one of 1,024 ranks while a function runs; the world of the test is closed before and opened afterwards."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from rueda.world import finish, init

    finish()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=RANKS)
    try:
        return use()
    finally:
        dist.destroy_process_group()
        init()


def _model() -> Any:
    from torch import nn

    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))


def _held(model: Any) -> int:
    """Bytes of the parameters that this rank holds."""
    return sum(
        one.to_local().numel() * 4 if hasattr(one, "to_local") else one.numel() * 4 for one in model.parameters()
    )


def _sharded() -> tuple[int, Any]:
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from rueda.measure.wire_bytes import WireBytes

    model, mesh = _model(), init_device_mesh("cpu", (RANKS,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    with WireBytes() as wire:
        model(torch.ones(2, WIDTH)).sum().backward()
    return _held(model), wire


def _data_by_tensor() -> tuple[int, Any]:
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    from rueda.measure.wire_bytes import WireBytes

    mesh = init_device_mesh("cpu", (RANKS // 8, 8), mesh_dim_names=("data", "tensor"))
    model = _model()
    parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    with WireBytes() as wire:
        model(torch.ones(2, WIDTH, requires_grad=True)).sum().backward()
    return _held(model), wire


@pytest.mark.parametrize("rank", [0, 1023])
@workers(1)
def test_one_of_1024_shards(rank: int) -> None:
    held, wire = _as_rank(rank, _sharded)
    assert held == 4 * PARAMETERS / RANKS
    assert wire.num_bytes("all-gather") == 2 * 4 * PARAMETERS  # forward and backward
    assert wire.num_bytes("reduce-scatter") == 4 * PARAMETERS
    assert wire.sent() == 3 * 4 * PARAMETERS * (RANKS - 1) / RANKS
    assert all(len(key.ranks) == RANKS for key in wire.calls)


@workers(1)
def test_one_of_128_by_8_splits_layers() -> None:
    rank = 1023  # one rank only: DTensor keeps the groups of a mesh for the life of a process
    held, wire = _as_rank(rank, _data_by_tensor)
    assert held == 4 * (2 * WIDTH * WIDTH / 8 + WIDTH / 8 + WIDTH)  # the second bias is whole
    assert wire.num_bytes("all-reduce") == 2 * 4 * 2 * WIDTH  # an output forward, an input's gradient backward
    first = rank // 8 * 8
    assert {key.ranks for key in wire.calls} == {tuple(range(first, first + 8))}
