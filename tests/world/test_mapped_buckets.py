"""Buckets that all ranks have mapped: the same bits as through the slots, whatever DistributedDataParallel does."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harness import workers
from rueda.world import World, current
from rueda.world.shared_memory import mapped_buckets
from rueda.world.shared_memory.mapped_buckets import MappedBuckets
from rueda.world.shared_memory.operations import AllReduceInPlace, Place
from rueda.world.shared_memory.world_group import world_group


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(300, 1000), nn.ReLU(), nn.Linear(1000, 301), nn.Linear(301, 2))


def trained(world: World, model: nn.Module, options: dict[str, Any], num_steps: int = 4) -> list[Tensor]:
    """Train for some steps, each of two micro-batches, and return the parameters."""
    accumulates = "static_graph" not in options  # torch asserts against both in the first step, now and then
    wrapped = world.wrap(model, **options)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9)
    for step in range(num_steps):
        inputs = torch.randn(2, 8, 300, generator=torch.Generator().manual_seed(100 * step + world.rank))
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        if accumulates:
            with wrapped.no_sync():  # type: ignore[operator]
                wrapped(inputs[0]).square().mean().backward()
        wrapped(inputs[1]).square().mean().backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


OPTIONS: list[dict[str, Any]] = [
    {"gradient_as_bucket_view": True},
    {"gradient_as_bucket_view": False, "bucket_cap_mb": 1},
    {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.3, "find_unused_parameters": True},
    {"gradient_as_bucket_view": True, "static_graph": True},
]


def check_trainings(world: World) -> None:
    patch = pytest.MonkeyPatch()
    for options in OPTIONS:
        mapped: list[bool] = []
        found = MappedBuckets.of

        def spy(buckets: MappedBuckets, index: int, buffer: Tensor, found: Any = found) -> Any:
            mapped.append((result := found(buckets, index, buffer)) is not None)  # noqa: B023
            return result

        with patch.context() as patched:
            patched.setattr(MappedBuckets, "of", spy)
            ours = trained(world, network(), options)
        assert any(mapped[-3:])
        with patch.context() as patched:
            patched.setattr(mapped_buckets, "_LEAST_BYTES", 1 << 40)
            theirs = trained(world, network(), options)
        assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


@workers(2)
def test_two_workers_train_as_through_the_slots() -> None:
    check_trainings(current())


@workers(3)
def test_three_workers_train_as_through_the_slots() -> None:
    check_trainings(current())


@workers(2)
def test_other_dtypes_are_averaged_too() -> None:
    world = current()
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        model = nn.Linear(700, 800, dtype=dtype)
        wrapped = world.wrap(model, gradient_as_bucket_view=True)
        for step in range(3):
            model.zero_grad()
            wrapped(torch.full((1, 700), world.rank + 1.0 + step, dtype=dtype)).sum().backward()
            assert model.weight.grad is not None and model.weight.grad.untyped_storage().is_shared()
            assert torch.equal(model.weight.grad, torch.full((800, 700), 1.5 + step, dtype=dtype))
            assert torch.equal(model.bias.grad, torch.ones(800, dtype=dtype))


@workers(3)
def test_all_use_the_slots_if_one_cannot_map() -> None:
    world, patch = current(), pytest.MonkeyPatch()

    def nothing(*_: object) -> None:
        return None

    refusals: list[tuple[str, Callable[..., Any]]] = [
        ("available_bytes", lambda: 1 << 20),
        ("_opened", nothing),
        ("_moved", lambda *_: mapped_buckets._File()),
    ]
    expected = trained(world, network(), OPTIONS[0])
    for name, refuse in refusals:
        with patch.context() as patched:
            if world.rank == 1:
                patched.setattr(mapped_buckets, name, refuse)
            model = network()
            found = trained(world, model, OPTIONS[0])
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
        through_slots = MappedBuckets(world_group())  # type: ignore[arg-type]
        with patch.context() as patched:
            if world.rank == 1:
                patched.setattr(mapped_buckets, name, refuse)
            assert through_slots.of(0, torch.zeros(1 << 17)) is None
        assert through_slots.of(0, torch.zeros(1 << 17)) is None  # nor is it tried again


@workers(2)
def test_a_file_of_another_process_is_refused() -> None:
    like = torch.zeros(1 << 17)
    file = mapped_buckets._moved(like, 2)
    assert like.untyped_storage().is_shared() and file.num_bytes == like.nbytes
    other = mapped_buckets._opened(file, like)
    assert other is not None
    like.fill_(3.0)
    assert torch.equal(other, like)
    assert mapped_buckets._opened(file._replace(inode=file.inode + 1), like) is None
    assert mapped_buckets._opened(file._replace(descriptor=1 << 20), like) is None


@workers(2)
def test_a_dropped_model_leaves_no_file_open_and_none_in_the_folder() -> None:
    world = current()
    trained(world, network(), OPTIONS[0])
    gc.collect()
    before, listed = len(os.listdir("/proc/self/fd")), set(os.listdir("/dev/shm"))
    for _ in range(3):
        trained(world, network(), OPTIONS[0])
        gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    assert not [name for name in set(os.listdir("/dev/shm")) - listed if str(os.getpid()) in name]


def test_each_rank_combines_its_part_into_all_tensors() -> None:
    for size in (2, 3, 5):
        for num_elements in (1, 63, 64, 1000, 200_003):
            tensors = [torch.randn(num_elements) for _ in range(size)]
            total = tensors[0].clone()
            for tensor in tensors[1:]:
                total += tensor
            for rank in range(size):
                AllReduceInPlace(Place(rank, size), tensors, 2.0).combine(0, [])
            assert all(torch.equal(tensor, total / 2.0) for tensor in tensors)
