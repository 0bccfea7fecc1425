"""What the workers do together, on 1, 2 and 3 of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import rueda
from harness import workers
from rueda.errors import WorldError
from rueda.world import World, current
from rueda.world.gathering import gather, own_first

CASES = [  # operation, the result for the tensors [r + 1, 2] on ranks r = 0, 1, 2
    ("sum", [6.0, 6.0]),
    ("mean", [2.0, 2.0]),
    ("min", [1.0, 2.0]),
    ("max", [3.0, 2.0]),
    ("product", [6.0, 8.0]),
]


@pytest.mark.parametrize(("operation", "expected"), CASES)
@workers(3)
def test_all_reduce(operation: str, expected: list[float]) -> None:
    world = current()
    mine = torch.tensor([world.rank + 1.0, 2.0])
    assert world.all_reduce(mine, operation).tolist() == expected
    assert mine.tolist() == [world.rank + 1.0, 2.0]  # the input is left alone


@workers(3)
def test_gather_and_broadcast() -> None:
    world = current()
    parts = world.all_gather(torch.tensor([world.rank]))
    assert [int(part) for part in parts] == [0, 1, 2]
    assert int(world.broadcast(torch.tensor(world.rank), source=2)) == 2
    assert world.all_gather_object({"rank": world.rank}) == [{"rank": r} for r in range(3)]
    assert world.broadcast_object(f"from {world.rank}", source=1) == "from 1"
    with pytest.raises(WorldError, match="a rank below 3, got 3"):
        world.broadcast(torch.zeros(1), source=3)


@workers(3)
def test_gather_takes_different_numbers_of_rows() -> None:
    """Gloo returned wrong numbers on one rank and aborted the other; the truth is one worker with all rows."""
    world = current()
    rows, factors = (
        torch.arange(12.0).reshape(6, 2).split([3, 1, 2]),
        torch.arange(1.0, 13).reshape(6, 2).split([3, 1, 2]),
    )
    own = rows[world.rank].clone().requires_grad_()
    found = gather(own)
    assert torch.equal(found, own_first(list(rows), world.rank))
    (found * own_first(list(factors), world.rank) * (world.rank + 1)).sum().backward()
    assert own.grad is not None
    assert torch.equal(own.grad, factors[world.rank] * (1 + 2 + 3))  # what the losses of all three contribute
    with pytest.raises(WorldError, match=r"rows of shape \(2,\) on every worker, as on rank 0, got .*\(3,\) on rank 1"):
        gather(torch.ones(2, 3 if world.rank == 1 else 2))
    with pytest.raises(WorldError, match=r"float32 rows .* got .*float64 rows"):
        gather(torch.ones(2, 2, dtype=torch.float64 if world.rank == 2 else torch.float32))


@workers(2)
def test_on_main_runs_once_and_tells_all(tmp_path: Path) -> None:
    world = current()
    file = tmp_path / "once"

    def write() -> int:
        with open(file, "x") as stream:  # a second writer would fail
            stream.write("here")
        return 42

    assert world.on_main(write) == 42
    assert file.read_text() == "here"
    with pytest.raises((WorldError, FileExistsError), match=r"once|File"):
        world.on_main(write)  # the error of rank 0 reaches both
    world.barrier()


@workers(3)
def test_local_main_first(tmp_path: Path) -> None:
    world = current()
    with world.local_main_first():
        if world.local_rank == 0:
            (tmp_path / "download").write_text("ready")
        assert (tmp_path / "download").read_text() == "ready"


@workers(2)
def test_wrap_starts_from_rank_0_and_averages() -> None:
    world = current()
    torch.manual_seed(world.rank)  # a user forgot to seed: the models differ
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    model[1].running_mean.fill_(world.rank)
    for sync_buffers in (True, False):
        wrapped = world.wrap(model, sync_buffers=sync_buffers)
        for tensor in model.state_dict().values():
            assert torch.equal(tensor, world.broadcast(tensor))
        inputs = torch.full((4, 3), world.rank + 1.0) + torch.arange(4).view(4, 1)
        wrapped(inputs).square().sum().backward()
        gradient = model[0].weight.grad.clone()
        model.zero_grad()
        nn.Sequential(*model)(inputs).square().sum().backward()
        mine = model[0].weight.grad
        assert torch.allclose(gradient, world.all_reduce(mine, "mean"))
        model.zero_grad()


@workers(2)
def test_random_numbers_differ_after_wrap_only() -> None:
    world = World(identity=current().identity, seed=7)
    torch.manual_seed(7)
    assert torch.equal(*world.all_gather(torch.rand(4)))
    world.wrap(nn.Linear(2, 2))
    assert not torch.equal(*world.all_gather(torch.rand(4)))
    drawn = []
    for _ in range(2):
        torch.manual_seed(7)
        World(identity=current().identity).wrap(nn.Linear(2, 2))  # without a seed of its own: torch's decides
        drawn.append(world.all_gather(torch.rand(4)))
        assert not torch.equal(*drawn[-1])
    assert all(map(torch.equal, *drawn))


@workers(2)
def test_gloo_stays_on_this_machine() -> None:
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
    assert torch.get_num_threads() == 1


def test_alone_nothing_is_opened() -> None:
    world = current()
    assert (world.rank, world.size, world.local_rank, world.local_size, world.is_main) == (0, 1, 0, 1, True)
    tensor = torch.tensor([1, 2])
    for result in (world.all_reduce(tensor), world.broadcast(tensor), *world.all_gather(tensor)):
        assert torch.equal(result, tensor) and result is not tensor
    assert world.on_main(lambda: 3) == 3
    model = nn.Linear(2, 2)
    assert world.wrap(model) is model
    assert not dist.is_initialized()


@pytest.mark.parametrize(
    ("operation", "dtype", "message"),
    [("average", torch.float32, "one of sum, mean"), ("mean", torch.int64, "floating-point")],
)
def test_wrong_reduction(operation: str, dtype: torch.dtype, message: str) -> None:
    with pytest.raises(WorldError, match=message):
        World().all_reduce(torch.zeros(2, dtype=dtype), operation)


def test_a_second_init_seeds_and_keeps_the_device() -> None:
    rueda.finish()  # the world that another test may have left, with its seed
    try:
        world = rueda.init()
        first = rueda.init(seed=7)
        drawn = torch.rand(3)
        assert (world.seed, first.seed, rueda.init().seed) == (None, 7, 7)
        torch.manual_seed(7)
        assert torch.equal(drawn, torch.rand(3))
        rueda.init(seed=7)
        assert torch.equal(drawn, torch.rand(3))
        other = "cpu" if world.device.type != "cpu" else "cuda"
        with pytest.raises(rueda.RuedaError, match=r"which is in use, got .*; call finish"):
            rueda.init(device=other)
    finally:
        rueda.finish()


@workers(2)
def test_the_process_group_outlasts_a_download() -> None:
    """The watcher ends a stall, and knows it from work; NCCL's own limit is 10 minutes, Gloo's 30."""
    from rueda.world.stall.limits import GROUP_TIMEOUT

    backend = dist.group.WORLD._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
    assert backend.options._timeout == GROUP_TIMEOUT
