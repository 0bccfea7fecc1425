"""Collectives in shared memory equal those of Gloo, have the same bits on all ranks, and end when a rank is gone."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from commandline import environ
from groups import FUZZ, SECONDS, assert_same_bits, new_store, on_processes
from harness import workers
from rueda.world import World, current
from rueda.world.shared_memory import segment as segments
from rueda.world.shared_memory import transport
from rueda.world.shared_memory.group import SharedGroup
from rueda.world.shared_memory.operations import part_of
from rueda.world.shared_memory.reductions import DTYPES, can_reduce, reduce_into, sum_lists
from rueda.world.shared_memory.segment import Segment, create
from rueda.world.shared_memory.transport import connect_buckets, connect_group
from rueda.world.shared_memory.world_group import world_group

OPERATIONS = {
    "sum": dist.ReduceOp.SUM,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "product": dist.ReduceOp.PRODUCT,
}
WIDE = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.bool: torch.uint8,
    torch.int16: torch.int32,
}
KILLS = [0.05, 0.1, 0.3, *(round(random.Random(number).uniform(0.0, 0.2), 4) for number in range(3, FUZZ))]


@contextmanager
def group(world: World, chunk_bytes: int = 4096) -> Iterator[SharedGroup]:
    """A group with small chunks, so that many tensors are larger than its slots."""
    connected = transport.connect_segment(new_store(), world.rank, world.size, 2 * chunk_bytes * world.size, SECONDS)
    assert connected is not None
    made = SharedGroup(connected, chunk_bytes)
    yield made
    dist.barrier()
    made.shutdown()


def draw(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.complex128 if dtype.is_complex else torch.float64
        return torch.randn(shape, generator=generator, dtype=wide).to(dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 4, shape, generator=generator).to(dtype)


def by_gloo(tensor: Tensor, operation: str) -> Tensor:
    """Reduce with Gloo, in a dtype that it has, and wide enough that the result is rounded once."""
    wide = {
        torch.float16: torch.float32,
        torch.bfloat16: torch.float32,
        torch.bool: torch.uint8,
        torch.int16: torch.int32,
    }
    result = tensor.contiguous().to(wide.get(tensor.dtype, tensor.dtype), copy=True)
    names = {"sum": "max", "product": "min"} if tensor.dtype == torch.bool else {}
    dist.all_reduce(result, OPERATIONS[names.get(operation, operation)])
    return result.to(tensor.dtype)


def check(
    shared: SharedGroup, world: World, shape: tuple[int, ...], dtype: torch.dtype, operation: str, seed: int
) -> None:
    """Reduce one random tensor, contiguous or not, in both ways."""
    mine = draw(shape, dtype, seed * world.size + world.rank)
    if seed % 3 == 2 and len(shape) > 1:
        mine = mine.transpose(0, -1)
    expected = by_gloo(mine, operation)
    before, result = mine.clone(), torch.empty(mine.shape, dtype=dtype)
    shared.all_reduce(mine, operation, result=result)
    assert torch.equal(mine, before)
    shared.begin_all_reduce(mine, operation).wait()
    assert torch.equal(mine, result)
    assert_same_bits(mine)
    tolerance = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float64: 1e-14, torch.complex128: 1e-14}
    torch.testing.assert_close(mine, expected, rtol=tolerance.get(dtype, 1e-6), atol=tolerance.get(dtype, 1e-6))


def check_table(world: World) -> None:
    with group(world) as shared:
        for dtype in sorted(DTYPES, key=str):
            for operation in OPERATIONS:
                if not can_reduce(dtype, operation) or (dtype.is_complex and operation == "product"):
                    continue  # Gloo has no product of complex numbers
                for number, shape in enumerate([(0,), (), (1,), (3, 5), (2, 7, 11), (4096,), (5000, 3)]):
                    check(shared, world, shape, dtype, operation, number)


@workers(2)
def test_two_workers_reduce_as_gloo_does() -> None:
    check_table(current())


@workers(3)
def test_three_workers_reduce_as_gloo_does() -> None:
    check_table(current())


def check_random(world: World, num_cases: int) -> None:
    choose = random.Random(7)
    dtypes = sorted(DTYPES - {torch.complex64, torch.complex128}, key=str)
    with group(world) as small, group(world, 1 << 16) as large:
        for number in range(num_cases):
            shape = tuple(choose.choice([0, 1, 2, 3, 17, 64, 129]) for _ in range(choose.randint(0, 3)))
            if choose.random() < 0.2:
                shape = (choose.randint(1, 60_000),)
            dtype, operation = choose.choice(dtypes), choose.choice(sorted(OPERATIONS))
            check(choose.choice([small, large]), world, shape, dtype, operation, number)


@workers(2)
def test_random_cases_on_two_workers() -> None:
    check_random(current(), 300)


@workers(3)
def test_random_cases_on_three_workers() -> None:
    check_random(current(), 300)


def check_others(world: World) -> None:
    choose = random.Random(3)
    with group(world) as shared:
        for number in range(60):
            shape = choose.choice([(0,), (), (1,), (7, 9), (9000,), (64, 65)])
            dtype = choose.choice([*sorted(DTYPES, key=str), torch.uint16])
            everyone = [draw(shape, dtype, number * world.size + rank) for rank in range(world.size)]
            mine = everyone[world.rank]
            parts = [torch.empty_like(mine) for _ in everyone]
            shared.all_gather(parts, mine)
            assert all(torch.equal(part, one) for part, one in zip(parts, everyone, strict=True))
            source = number % world.size
            copied = mine.clone().transpose(0, -1) if mine.dim() > 1 else mine.clone()
            shared.broadcast(copied, source)
            assert torch.equal(copied, everyone[source].transpose(0, -1) if mine.dim() > 1 else everyone[source])
            if can_reduce(dtype, "sum"):
                rows = torch.stack(
                    [torch.stack(everyone)[(rank + world.rank) % world.size] for rank in range(world.size)]
                )
                own, total = torch.empty_like(mine), rows.clone()
                shared.reduce_scatter(own, rows)
                shared.all_reduce(total)
                assert torch.equal(own, total[world.rank])


@workers(2)
def test_two_workers_gather_broadcast_and_scatter() -> None:
    check_others(current())


@workers(3)
def test_three_workers_gather_broadcast_and_scatter() -> None:
    check_others(current())


@workers(3)
def test_the_sum_is_that_of_the_ranks_in_order() -> None:
    """So it does not depend on the size of the tensor, nor on which rank adds."""
    world = current()
    with group(world) as shared:
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
            for size in (1, 100, 9000, 100_000):
                parts = [draw((size,), dtype, rank) for rank in range(world.size)]
                mine = parts[world.rank].clone()
                shared.all_reduce(mine, divisor=world.size)
                wide = torch.float32 if dtype.itemsize == 2 else dtype
                total = parts[0].to(wide) + parts[1].to(wide) + parts[2].to(wide)
                assert torch.equal(mine, (total / 3).to(dtype))


@workers(2)
def test_operations_can_be_begun_together_and_finished_in_any_order() -> None:
    world = current()
    with group(world) as shared:
        tensors = [torch.full((size,), float(world.rank + 1)) for size in (10, 5000, 3, 20_000, 1)]
        begun = [shared.begin_all_reduce(tensor) for tensor in tensors]
        for operation in reversed(begun) if world.rank else begun:
            operation.wait()
        assert all(torch.equal(tensor, torch.full_like(tensor, 3.0)) for tensor in tensors)


@workers(2)
def test_ranks_that_call_something_else_get_an_error() -> None:
    world = current()
    with group(world) as shared:
        with pytest.raises(RuntimeError, match="expected the same collective of the same size on all ranks"):
            shared.all_reduce(torch.zeros(3 + world.rank))
        with pytest.raises(RuntimeError, match="an earlier collective of this group failed"):
            shared.all_reduce(torch.zeros(3))


@workers(3)
def test_ranks_that_name_another_operation_or_source_get_an_error() -> None:
    world = current()
    with group(world) as shared, pytest.raises(RuntimeError, match=r"all_reduce of .*: expected the same"):
        shared.all_reduce(torch.zeros(3), "sum" if world.rank < 2 else "max")
    with group(world) as shared, pytest.raises(RuntimeError, match=r"broadcast of .*: expected the same"):
        shared.broadcast(torch.zeros(3), (world.rank + 1) % 3)


@workers(2)
def test_a_rank_whose_collective_fails_leaves_the_group_at_once() -> None:
    world = current()
    with group(world) as shared:
        if world.rank == 0:
            with pytest.raises(RuntimeError, match="got another one on rank 1"):
                shared.all_reduce(torch.zeros(3))
        else:
            shared.broadcast(torch.zeros(3), 1)  # which does not wait for the others
            with pytest.raises(RuntimeError, match="rank 0 of the group is gone"):
                shared.all_reduce(torch.zeros(3))


@workers(2)
def test_waiting_for_a_rank_that_has_left_is_an_error() -> None:
    world = current()
    with group(world) as shared:
        if world.rank == 0:
            shared.shutdown()
        else:
            with pytest.raises(RuntimeError, match="rank 0 of the group is gone"):
                shared.all_reduce(torch.zeros(3))


def test_lists_are_summed_as_single_tensors() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        shapes = [(3,), (300, 300), (), (70_000,), (2, 0), (5, 7)]
        parts = [[draw(shape, dtype, rank * 10 + n) for n, shape in enumerate(shapes)] for rank in range(3)]
        for into in (dtype, torch.float64):
            targets = [torch.empty(shape, dtype=into) for shape in shapes]
            targets[-1] = torch.empty((7, 5), dtype=into).T
            sum_lists(targets, parts, 3.0)
            for target, *tensors in zip(targets, *parts, strict=True):
                expected = torch.empty_like(tensors[0])
                reduce_into(expected, tensors, "sum", 3.0)
                assert torch.equal(target, expected.to(into))


@workers(3)
def test_buckets_are_averaged_step_after_step_until_a_rank_leaves() -> None:
    world = current()
    sizes = [10_000, 7, 300]
    buckets = connect_buckets(new_store(), world.rank, world.size, [4 * size for size in sizes], SECONDS)
    assert buckets is not None
    own = [buckets.bucket(index, torch.float32) for index in range(len(sizes))]
    for step in range(20):
        leaves = step == 19 and world.rank == 1
        if leaves:
            buckets.leave()
        for number, bucket in enumerate(own):
            bucket.open()
            bucket.own.fill_(step + number + world.rank)
            bucket.post()
        if leaves:
            break
        for bucket in own:
            bucket.wait()
            bucket.combine(3.0)
        for number, (bucket, size) in enumerate(zip(own, sizes, strict=True)):
            result = torch.empty(size)
            if bucket.direct:
                sum_lists([result], [[slot] for slot in bucket.slots], 3.0)
            else:
                bucket.wait_for_parts()
                result.copy_(bucket.slots[0])
            assert bucket.direct == (step == 19) and torch.equal(result, torch.full((size,), step + number + 1.0))
            bucket.release()
    dist.barrier()
    buckets.shutdown()


@workers(2)
def test_the_world_uses_it() -> None:
    world = current()
    assert world_group() is not None
    begun = world_group().num_operations  # type: ignore[union-attr]
    x = torch.arange(6.0).view(2, 3) + world.rank
    assert torch.equal(world.all_reduce(x, "mean"), torch.arange(6.0).view(2, 3) + 0.5)
    assert x[0, 0] == world.rank
    assert world.all_reduce_(x, "max") is x and x[0, 0] == 1.0
    assert torch.equal(world.broadcast(x + world.rank, 1), x + 1)
    y = torch.ones(2, requires_grad=True)
    parts = world.all_gather(y * (world.rank + 1))
    assert [part[0].item() for part in parts] == [1.0, 2.0]
    sum(part.sum() * (rank + 1) for rank, part in enumerate(parts)).backward()  # type: ignore[union-attr]
    assert y.grad is not None and y.grad[0].item() == 2.0 * (world.rank + 1) ** 2
    assert world_group().num_operations - begun == 5  # type: ignore[union-attr]


@workers(2)
def test_it_works_inside_and_outside_of_inference_mode() -> None:
    world = current()
    with group(world) as shared:
        for inside in (True, False, True):
            with torch.inference_mode(inside):
                x = torch.full((5,), float(world.rank), dtype=torch.float64)
                shared.all_reduce(x)
                assert x[0].item() == 1.0
        with torch.inference_mode():
            rows = torch.full((2, 5), float(world.rank))
        for tensor in (rows, rows[:, :1]):  # contiguous and not, changed in place where torch forbids it
            shared.all_reduce(tensor)
            shared.broadcast(tensor, 1)
        assert rows[:, 0].tolist() == [2.0, 2.0] and rows[0, 1].item() == 1.0


def train(wrap: Callable[[nn.Module], nn.Module], rank: int, num_steps: int = 4) -> list[Tensor]:
    torch.manual_seed(0)
    model = wrap(nn.Sequential(nn.Linear(300, 1000), nn.ReLU(), nn.Linear(1000, 300), nn.Linear(300, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(num_steps):
        x = draw((8, 300), torch.float32, 100 * step + rank)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


@workers(3)
def test_wrapped_models_average_their_gradients_in_it() -> None:
    world = current()
    shared = world_group()
    assert shared is not None
    begun = shared.num_operations
    ours = train(lambda model: world.wrap(model, bucket_cap_mb=1), world.rank)
    # DDP lays out its buckets after the first step, two of them instead of one. To map one takes two operations.
    assert shared.num_operations == begun + (2 + 1) + 2 * 2 + 3 * 2
    theirs = train(lambda model: nn.parallel.DistributedDataParallel(model), world.rank)
    for mine, other in zip(ours, theirs, strict=True):
        assert_same_bits(mine)
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


def joined(wrap: Callable[[nn.Module], nn.Module], rank: int, **options: bool) -> list[Tensor]:
    """Train with one batch more on each further rank, within and after torch's ``join``."""
    torch.manual_seed(0)
    model = wrap(nn.Sequential(nn.Linear(300, 1000), nn.ReLU(), nn.Linear(1000, 300), nn.Linear(300, 2)))
    assert isinstance(model, nn.parallel.DistributedDataParallel)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(number: int) -> None:
        optimizer.zero_grad()
        model(draw((8, 300), torch.float32, 100 * number + rank)).square().mean().backward()
        optimizer.step()

    with model.join(**options):
        for number in range(2 + 2 * rank):
            step(number)
    return [parameter.detach() for parameter in model.parameters()]


@workers(3)
def test_ranks_that_have_no_more_batches_join_with_zeros() -> None:
    world = current()
    shared = world_group()
    assert shared is not None
    for static in (True, False):
        begun = shared.num_operations
        ours = joined(lambda model: world.wrap(model), world.rank, divide_by_initial_world_size=static)
        assert shared.num_operations > begun
        theirs = joined(
            lambda model: nn.parallel.DistributedDataParallel(model), world.rank, divide_by_initial_world_size=static
        )
        for mine, other in zip(ours, theirs, strict=True):
            assert_same_bits(mine)
            torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


@workers(2)
def test_a_model_keeps_the_hook_of_its_program() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    world = current()
    shared = world_group()
    assert shared is not None
    model = world.wrap(nn.Linear(2, 2))
    model.register_comm_hook(None, allreduce_hook)  # type: ignore[operator]
    begun = shared.num_operations
    model(torch.ones(1, 2)).sum().backward()
    assert shared.num_operations == begun


@workers(2)
def test_gloo_is_used_by_all_where_one_rank_wants_it() -> None:
    world = current()
    for unwilling in (0, 1):
        said: list[str] = []
        with pytest.MonkeyPatch().context() as patched:
            patched.setattr(transport, "_say", said.append)
            if world.rank == unwilling:
                patched.setenv("RUEDA_TRANSPORT", "gloo")
            soon = timedelta(seconds=5)
            assert connect_group(new_store(), world.rank, world.size, soon) is None
            assert connect_buckets(new_store(), world.rank, world.size, [1 << 20], soon) is None
        why = f"rank {unwilling} of the group does not take part: RUEDA_TRANSPORT=gloo"
        assert said == ([] if world.rank == unwilling else [why, why]), (world.rank, unwilling, said)


@workers(2)
def test_gloo_is_used_where_it_is_wanted_or_memory_is_short() -> None:
    world = current()
    patch = pytest.MonkeyPatch()
    with patch.context() as patched:
        patched.setenv("RUEDA_TRANSPORT", "gloo")
        assert connect_group(new_store(), world.rank, world.size, SECONDS) is None
    with patch.context() as patched:
        said: list[str] = []
        patched.setattr(transport, "_say", said.append)
        patched.setattr(segments, "available_bytes", lambda: 1 << 20)
        assert connect_group(new_store(), world.rank, world.size, SECONDS) is None
        assert connect_buckets(new_store(), world.rank, world.size, [1 << 20], SECONDS) is None
        assert len(said) == (2 if world.rank == 0 else 0) and all("No space left" in line for line in said)
    with patch.context() as patched:  # another host: that is expected, and nothing is said
        said.clear()
        patched.setattr(transport, "_say", said.append)
        patched.setattr(transport, "_host", lambda: f"host {world.rank}")
        assert connect_group(new_store(), world.rank, world.size, SECONDS) is None and not said


def test_why_gloo_is_used_is_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch().context() as patched:
        patched.setattr(transport, "_said", set())
        for _ in range(2):
            transport._say("a reason")
    assert capfd.readouterr().err.count("a reason") == 1


def test_memory_of_another_file_is_refused() -> None:
    descriptor = create(2, 4096)
    with pytest.raises(OSError, match="another file was found"):
        transport._opened(os.getpid(), descriptor, "00", 1, 2, 4096)
    os.close(descriptor)


def test_a_file_of_the_program_is_not_changed_where_the_segment_is_sought(tmp_path: Path) -> None:
    """A process of the same number in another container may have anything open under the segment's descriptor."""
    content = bytes(range(256)) * 256
    file = tmp_path / "data.bin"
    file.write_bytes(content)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    before = len(os.listdir("/proc/self/fd"))
    for path, flags in ((file, os.O_RDONLY), (pipe, os.O_RDWR)):
        opened = os.open(path, flags)
        with pytest.raises(OSError, match="another file was found"):
            transport._opened(os.getpid(), opened, "00", 1, 2, 4096)
        os.close(opened)
    assert file.read_bytes() == content
    assert len(os.listdir("/proc/self/fd")) == before


def test_parts_cover_all_elements() -> None:
    for num_elements in (0, 1, 63, 64, 65, 1000):
        for size in (1, 2, 3, 7):
            parts = [part_of(num_elements, rank, size) for rank in range(size)]
            assert [number for low, high in parts for number in range(low, high)] == list(range(num_elements))


def test_a_rank_whose_process_has_ended_is_gone() -> None:
    """Also while it is a zombie, whose process id exists; and a forked child does not keep its parent alive."""
    descriptor = create(2, 4096)
    mine = Segment(descriptor, 0, 2, 4096)
    assert mine.is_gone(1) and not mine.closed
    code = f"""
        import os, sys, time
        from rueda.world.shared_memory.segment import Segment, open_of
        segment = Segment(open_of({os.getpid()}, {descriptor}, lambda about: True), 1, 2, 4096)
        if os.fork() == 0:
            time.sleep(120)
            os._exit(0)
        print("ready", flush=True)
        sys.stdin.read()
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=environ(), start_new_session=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            assert not mine.is_gone(1)
            os.kill(process.pid, signal.SIGKILL)
            deadline = time.monotonic() + 60
            while not mine.is_gone(1):
                assert time.monotonic() < deadline
                time.sleep(0.01)
        finally:
            os.killpg(process.pid, signal.SIGKILL)


KILLED = """
    import os, signal, sys, threading, time
    import torch
    import rueda
    world = rueda.init()
    from rueda.world.shared_memory.world_group import world_group
    assert world_group() is not None
    x = torch.ones(1_000_000)
    world.all_reduce_(x)
    print("begun", flush=True)
    if world.rank == 1:
        threading.Timer(float(sys.argv[1]), lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    begun = time.monotonic()
    try:
        while time.monotonic() < begun + 100:
            world.all_reduce_(x, "max")
        os._exit(1)
    except RuntimeError as error:
        print(f"ended: {error}", flush=True)
        os._exit(3)
"""


@pytest.mark.parametrize("seconds", KILLS)
def test_the_others_end_when_a_rank_is_killed_during_a_reduction(seconds: float) -> None:
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    ended = on_processes(3, KILLED, str(seconds))
    assert [code for code, _ in ended] == [3, -signal.SIGKILL, 3]
    assert all("ended: shared memory: rank 1 of the group is gone" in text for _, text in (ended[0], ended[2]))
    if before:
        assert not [name for name in set(os.listdir("/dev/shm")) - before if "rueda" in name]


KILLED_BUCKETS = """
    import os, signal, sys, threading
    import rueda, torch
    world = rueda.init()
    model = torch.nn.Linear(1000, 1000)
    wrapped = world.wrap(model, gradient_as_bucket_view=True)
    step = 0
    try:
        while True:
            step += 1
            if step == 4 and world.rank == 1:  # DDP has laid out its buckets, for which it uses Gloo
                threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
            wrapped(torch.ones(1, 1000)).sum().backward()
            assert torch.equal(model.weight.grad, torch.ones(1000, 1000)), "wrong gradient"
            wrapped.zero_grad()
    except RuntimeError as error:
        print("ended:", error, flush=True)
        os._exit(3)
"""


def test_the_others_end_when_a_rank_is_killed_while_buckets_are_averaged_in_place() -> None:
    ended = on_processes(3, KILLED_BUCKETS)
    assert [code for code, _ in ended] == [3, -signal.SIGKILL, 3]
    assert all("rank 1 of the group is gone" in text for _, text in (ended[0], ended[2]))


LATE = """
    import sys, time
    import rueda, torch
    world = rueda.init()
    world.all_reduce(torch.ones(5))
    if world.rank == 1:
        time.sleep(60)
    world.all_reduce(torch.ones(70_000), "max")
"""


def test_a_rank_that_never_arrives_is_named_and_the_job_ends() -> None:
    limits = {"RUEDA_STALL_WARNING": "1", "RUEDA_STALL_TIMEOUT": "3"}
    ended = on_processes(2, LATE, variables=limits, stop_after=0)
    code, text = ended[0]
    assert code == 124
    assert "stall: all_reduce of float32[70000] has waited" in text and "for rank 1" in text
