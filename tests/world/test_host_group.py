"""All-reduces over several hosts equal those of Gloo, have the same bits on all ranks, and end when a rank is gone.

The hosts are pretended: the processes of this machine are told apart by the identity of a host that they give.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist

from groups import FUZZ, SECONDS, assert_same_bits, new_store, on_processes
from harness import workers
from random_cases import DTYPES, assert_equal_but_for_rounding, by_gloo, draw, random_shape
from rueda.world import World, current
from rueda.world.shared_memory import routes, transport
from rueda.world.shared_memory.group import SharedGroup
from rueda.world.shared_memory.host_group import HostGroup
from rueda.world.shared_memory.operations import Fusion, Place
from rueda.world.shared_memory.routes import Part
from rueda.world.shared_memory.transport import connect_group, why_not

KILLS = [0.05, 0.3, *(round(random.Random(number).uniform(0.0, 0.2), 4) for number in range(2, FUZZ))]


@contextmanager
def pretended(world: World, host_of: list[int], chunk_bytes: int = 16384) -> Iterator[Any]:
    """Connect the workers as if they were on these hosts, with small chunks and parts."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RUEDA_TRANSPORT", "shared")
        patched.setattr(transport, "_host", lambda: f"host {host_of[world.rank]}")
        patched.setattr(transport, "_LEAST_CHUNK_BYTES", chunk_bytes)
        patched.setattr(transport, "_HOST_CHUNK_BYTES", chunk_bytes)
        patched.setattr(routes, "PART_BYTES", 1024)
        patched.setattr(routes, "WHOLE_BYTES", 2048)
        made = connect_group(new_store(), world.rank, world.size, SECONDS)
        yield made
        dist.barrier()
        if made is not None:
            made.shutdown()


def check_random(world: World, host_of: list[int], num_cases: int) -> None:
    choose = random.Random(5)
    with pretended(world, host_of) as small, pretended(world, host_of, 1 << 17) as large:
        assert isinstance(small, HostGroup) and isinstance(large, HostGroup)
        for number in range(num_cases):
            dtype = choose.choice(DTYPES)
            operation = choose.choice(["sum", "min", "max", "product", *["mean"] * dtype.is_floating_point])
            name = "sum" if operation == "mean" else operation
            shape = random_shape(choose)
            mine = draw(shape, dtype, world.size * number + world.rank)
            if len(shape) > 1 and choose.random() < 0.3:
                mine = mine.transpose(0, -1)
            what = f"case {number}: {operation} of {dtype}{list(mine.shape)}"
            group, ahead, fresh = choose.choice([small, large]), choose.random() < 0.4, choose.random() < 0.5
            expected, before = by_gloo(mine, operation), mine.clone()
            result = torch.empty(mine.shape, dtype=dtype) if fresh else None
            divisor = world.size if operation == "mean" else None
            if ahead:
                assert group.begin_all_reduce(mine, name, divisor=divisor, result=result).wait()
            else:
                group.all_reduce(mine, name, divisor=divisor, result=result)
            found = mine if result is None else result
            assert_equal_but_for_rounding(found, expected, what)
            assert result is None or torch.equal(mine, before), what
            assert_same_bits(found)


@workers(4)
def test_two_hosts_of_two_reduce_as_gloo_does() -> None:
    check_random(current(), [0, 0, 1, 1], 150)


@workers(4)
def test_ranks_may_be_dealt_to_hosts_in_any_order() -> None:
    check_random(current(), [0, 1, 1, 0], 40)


@workers(3)
def test_three_hosts_of_one_reduce_as_gloo_does() -> None:
    check_random(current(), [0, 1, 2], 150)


@workers(4)
def test_the_sum_is_that_of_the_hosts_in_order() -> None:
    """So it does not depend on the size of the tensor, nor on which rank adds, nor on when it is run."""
    world = current()
    with pretended(world, [0, 0, 1, 1]) as group:
        for size in (1, 100, 9000, 100_000):
            for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.complex64):
                a, b, c, d = parts = [draw((size,), torch.float32, rank).to(dtype) for rank in range(world.size)]
                mine = parts[world.rank].clone()
                group.all_reduce(mine)
                assert torch.equal(mine, (a + b) + (c + d))


@workers(4)
def test_operations_can_be_begun_together_and_finished_in_any_order() -> None:
    world = current()
    with pretended(world, [0, 0, 1, 1]) as group:
        taken = torch.zeros(500)
        tensors = [torch.full((size,), float(world.rank + 1)) for size in (10, 50_000, 3, 200_000, 1)]
        begun = [group.begin_all_reduce(tensor) for tensor in tensors]
        fusion = Fusion(lambda slot: slot.fill_(world.rank), lambda part: part.mul_(2.0), taken.copy_)
        begun.append(group.begin_fused_all_reduce(500, torch.float32, "sum", fusion))
        for operation in reversed(begun) if world.rank % 2 else begun:
            operation.wait()
        assert all(torch.equal(tensor, torch.full_like(tensor, 10.0)) for tensor in tensors)
        assert torch.equal(taken, torch.full((500,), 12.0))
        assert group.num_operations == 6 and group.waits_for() is None


@workers(4)
def test_a_wait_can_be_limited_and_tensors_of_inference_mode_are_reduced() -> None:
    world = current()
    with pretended(world, [0, 0, 1, 1]) as group, torch.inference_mode():
        x = torch.ones(40_000)
        if world.rank == 3:
            dist.barrier()
            group.all_reduce(x)
        else:
            begun = group.begin_all_reduce(x)
            assert not begun.wait(0.2)
            assert group.waits_for()[:2] == ("all_reduce of float32[40000]", 1)
            dist.barrier()
            assert begun.wait(60.0)
        assert torch.equal(x, torch.full_like(x, 4.0))


@workers(4)
def test_ranks_of_other_hosts_that_call_something_else_get_an_error() -> None:
    world = current()
    with pretended(world, [0, 0, 1, 1]) as group:
        with pytest.raises(RuntimeError, match=r"expected the same collective of the same size|is gone"):
            group.all_reduce(torch.zeros(3000 + 64 * (world.rank // 2)))
        with pytest.raises(RuntimeError, match="an earlier collective of this group failed"):
            group.all_reduce(torch.zeros(3))


@workers(4)
def test_all_hosts_notice_that_a_rank_has_left() -> None:
    world = current()
    with pretended(world, [0, 0, 1, 1]) as group:
        if world.rank == 2:
            group.shutdown()
        else:
            with pytest.raises(RuntimeError, match=r"rank . of the group is gone"):
                group.all_reduce(torch.zeros(100_000))


@workers(3)
def test_gloo_is_used_where_hosts_have_different_numbers_of_ranks() -> None:
    world = current()
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(transport, "_say", said.append)
        with pretended(world, [0, 0, 1]) as group:
            assert group is None
        assert said == (["expected the same number of ranks on each host, got 2, 1"] if world.rank == 0 else [])
        with pretended(world, [0, 0, 0]) as group:
            assert isinstance(group, SharedGroup)


def test_hosts_that_are_too_many_or_did_not_ask_use_gloo() -> None:
    assert why_not([[rank] for rank in range(17)], "shared") == "expected at most 16 hosts, got 17"
    assert why_not([[0, 1], [2, 3]], "") and not why_not([[0, 1], [2, 3]], "shared")


def test_parts_and_shares_cover_all_elements() -> None:
    for num_elements in (0, 1, 63, 5000, 8192, 8193, 70_001):
        for size in (1, 2, 3, 8):
            for num_hosts in (2, 3, 5):
                covered: list[int] = []
                for rank in range(size):
                    part = Part.of(num_elements, 4, Place(rank, size), num_hosts)
                    shares = part.shares(num_hosts)
                    spans = shares[:1] if part.whole else shares
                    covered += [part.low + n for begin, end in spans for n in range(begin, end)]
                assert covered == list(range(num_elements))


# With processes of their own.

HOST = """
    import os, sys
    from rueda.world.shared_memory import transport
    transport._host = lambda: "host " + str(int(os.environ["RANK"]) // 2)
"""
USED = (
    HOST
    + """
    import torch, torch.distributed as dist
    from torch import nn
    import rueda
    world = rueda.init()
    assert world.transport == "shared memory within hosts"
    x = torch.arange(6.0).view(2, 3) + world.rank
    assert torch.equal(world.all_reduce(x, "mean"), torch.arange(6.0).view(2, 3) + 1.5)
    assert world.all_reduce_(x, "max") is x and x[0, 0] == 3.0
    assert torch.equal(world.broadcast(x + world.rank, 1), x + 1)
    assert [part.item() for part in world.all_gather(torch.tensor(float(world.rank)))] == [0.0, 1.0, 2.0, 3.0]

    def train(wrap):
        torch.manual_seed(0)
        model = wrap(nn.Sequential(nn.Linear(300, 1000), nn.ReLU(), nn.Linear(1000, 300), nn.Linear(300, 2)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for step in range(4):
            torch.manual_seed(100 * step + world.rank)
            optimizer.zero_grad()
            model(torch.randn(8, 300)).square().mean().backward()
            optimizer.step()
        return [parameter.detach() for parameter in model.parameters()]

    from rueda.world.shared_memory.world_group import world_group
    begun = world_group().num_operations
    ours = train(lambda model: world.wrap(model, bucket_cap_mb=1))
    assert world_group().num_operations == begun + 1 + 3 * 2
    theirs = train(nn.parallel.DistributedDataParallel)
    for mine, other in zip(ours, theirs):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)
        bits = mine.contiguous().view(torch.int32)
        assert torch.equal(world.all_reduce(bits, "max"), world.all_reduce(bits, "min"))
    rueda.finish()
    print("good")
"""
)
HOROVOD = (
    HOST
    + """
    import torch
    from torch import nn
    import rueda.hvd.torch as hvd
    hvd.init()
    rank = hvd.rank()
    for size in (3, 5000, 400_000):
        x = torch.full((size,), float(rank + 1))
        assert torch.equal(hvd.allreduce(x, op=hvd.Sum), torch.full((size,), 10.0))
        assert torch.equal(hvd.allreduce(x, name=f"mean {size}"), torch.full((size,), 2.5))
        assert torch.equal(hvd.broadcast(x, 2), torch.full((size,), 3.0))
    handles = [hvd.allreduce_async(torch.full((2000,), float(n + rank)), name=f"t{n}", op=hvd.Sum) for n in range(20)]
    for n, handle in enumerate(handles):
        assert torch.equal(hvd.synchronize(handle), torch.full((2000,), 4.0 * n + 6.0))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 1000), nn.ReLU(), nn.Linear(1000, 300), nn.Linear(300, 2))
    same = [parameter.detach().clone().requires_grad_() for parameter in model.parameters()]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    reference = torch.optim.SGD(same, lr=0.1)
    for step in range(4):
        batches = []
        for other in range(4):
            torch.manual_seed(10 * step + other)
            batches.append(torch.randn(8, 300))
        optimizer.zero_grad()
        model(batches[rank]).square().mean().backward()
        optimizer.step()
        reference.zero_grad()
        torch.func.functional_call(
            model, dict(zip(dict(model.named_parameters()), same)), torch.cat(batches)
        ).square().mean().backward()
        reference.step()
    for mine, other in zip(model.parameters(), same):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)
    from rueda.hvd.core.process_groups import ReducingTransfers
    from rueda.hvd.core.lifecycle import engine
    assert any(type(group) is ReducingTransfers for group in engine().groups._groups.values())
    hvd.shutdown()
    print("good")
"""
)
KILLED = (
    HOST
    + """
    import signal, threading, time
    import torch
    import rueda
    world = rueda.init()
    assert world.transport == "shared memory within hosts"
    x = torch.ones(1_000_000)
    world.all_reduce_(x)
    if world.rank == 2:
        threading.Timer(float(sys.argv[1]), lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    begun = time.monotonic()
    try:
        while time.monotonic() < begun + 100:
            world.all_reduce_(x, "max")
        os._exit(1)
    except RuntimeError as error:
        print(f"ended: {error}", flush=True)
        time.sleep(float(sys.argv[2]))
        os._exit(3)
"""
)
LATE = (
    HOST
    + """
    import time
    import rueda, torch
    world = rueda.init()
    world.all_reduce(torch.ones(5))
    if world.rank == 3:
        time.sleep(60)
    world.all_reduce(torch.ones(70_000), "max")
"""
)
SHARED = {"RUEDA_TRANSPORT": "shared"}


@pytest.mark.parametrize("code", [USED, HOROVOD], ids=["world", "hvd"])
def test_world_and_hvd_use_it(code: str) -> None:
    ended = on_processes(4, code, variables=SHARED)
    assert [status for status, _ in ended] == [0] * 4, ended
    assert all("good" in text for _, text in ended)


@pytest.mark.parametrize("seconds", KILLS)
def test_all_others_end_when_a_rank_is_killed_during_a_reduction(seconds: float) -> None:
    """Also those that have nothing to do with it: whoever gets an error leaves the group, long before it ends."""
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    ended = on_processes(4, KILLED, str(seconds), "1.0", variables=SHARED)
    assert [code for code, _ in ended] == [3, 3, -signal.SIGKILL, 3], ended
    assert all("of the group is gone" in text for rank, (_, text) in enumerate(ended) if rank != 2)
    if before:
        assert not [name for name in set(os.listdir("/dev/shm")) - before if "rueda" in name]


def test_a_rank_of_another_host_that_never_arrives_is_named_and_the_job_ends() -> None:
    limits = {"RUEDA_STALL_WARNING": "1", "RUEDA_STALL_TIMEOUT": "3"}
    ended = on_processes(4, LATE, variables={**limits, **SHARED}, stop_after=0)
    code, text = ended[0]
    assert code == 124
    assert "stall: all_reduce of float32[70000] has waited" in text and "for rank 3" in text
