"""Bytes that collectives carry, against sizes that are known: single collectives, DDP, FSDP, tensor parallelism."""

from __future__ import annotations

import pytest

from harness import workers

SINGLE = {  # bytes of the tensor as the table says, for 10 float32 on each of 2 ranks
    "all-reduce": 40,
    "all-gather": 80,
    "reduce-scatter": 40,
    "all-to-all": 40,
    "broadcast": 40,
}


@workers(2)
def test_single_collectives() -> None:
    import torch
    import torch.distributed as dist

    from rueda.measure.wire_bytes import WireBytes

    rank, tensor = dist.get_rank(), torch.ones(10)
    with WireBytes() as wire:
        dist.all_reduce(tensor)
        dist.all_gather([torch.ones(10), torch.ones(10)], tensor)
        dist.reduce_scatter(torch.ones(5), [torch.ones(5), torch.ones(5)])
        dist.all_to_all_single(torch.ones(10), tensor)
        dist.broadcast(tensor, 0)
        dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0)
        dist.barrier()
    assert {kind: wire.num_bytes(kind) for kind in SINGLE} == SINGLE
    assert wire.num_bytes("send") == (40 if rank == 0 else 0) and wire.num_calls("barrier") == 1
    half = sum(SINGLE.values()) / 2  # (N - 1) / N of each, and as much again of the all-reduce
    assert wire.sent() == half + 20 + wire.num_bytes("send")
    assert all(key.ranks == (0, 1) and not key.functional for key in wire.calls)


@workers(2)
def test_functional_collectives_and_groups() -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed import _functional_collectives as functional

    from rueda.measure.wire_bytes import Carried, WireBytes

    alone = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
    with WireBytes() as wire:
        functional.all_reduce(torch.ones(6), "sum", dist.group.WORLD).sum()
        gathered = torch.ops._c10d_functional.all_gather_into_tensor(torch.ones(6), 2, dist.group.WORLD.group_name)
        torch.ops._c10d_functional.wait_tensor(gathered)
        dist.all_reduce(torch.ones(10), group=alone)
    both = (0, 1)
    assert wire.tensors[Carried("all-reduce", both, True)] == 24
    assert wire.tensors[Carried("all-gather", both, True)] == 48
    assert wire.tensors[Carried("all-reduce", (dist.get_rank(),), False)] == 40
    assert wire.sent() == 24 + 24  # a group of one sends nothing


@workers(2)
def test_ddp_reduces_the_gradients_once() -> None:
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from rueda.measure.wire_bytes import WireBytes

    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4)))
    with WireBytes() as wire:
        model(torch.ones(3, 4)).sum().backward()
    assert wire.num_bytes("all-reduce") == wire.sent() == 4 * (4 * 8 + 8 + 8 * 4 + 4)


@pytest.mark.parametrize("stay", [False, True])
@workers(2)
def test_fsdp_gathers_parameters_and_scatters_gradients(stay: bool) -> None:
    import torch
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from rueda.measure.wire_bytes import WireBytes

    model, mesh = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4)), init_device_mesh("cpu", (2,))
    for layer in model:
        fully_shard(layer, mesh=mesh, reshard_after_forward=not stay)
    fully_shard(model, mesh=mesh)
    num_bytes = 4 * (4 * 8 + 8 + 8 * 4 + 4)
    with WireBytes() as wire:
        model(torch.ones(3, 4)).sum().backward()
    assert wire.num_bytes("all-gather") == (1 if stay else 2) * num_bytes
    assert wire.num_bytes("reduce-scatter") == num_bytes
    assert wire.sent() == (1 if stay else 1.5) * num_bytes


@workers(2)
def test_tensor_parallelism_reduces_activations() -> None:
    import torch
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    from rueda.measure.wire_bytes import WireBytes

    model, mesh = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 6)), init_device_mesh("cpu", (2,))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
    with WireBytes() as wire:
        model(torch.ones(3, 4, requires_grad=True)).sum().backward()
    # Megatron: the outputs of the second layer forward, the gradients of the first one's inputs backward
    assert wire.num_bytes("all-reduce") == wire.sent() == 4 * 3 * (6 + 4)
    assert all(key.functional for key in wire.calls)
