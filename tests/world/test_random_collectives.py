"""The collectives of a world equal those of Gloo, whatever the shapes, types and operations."""

from __future__ import annotations

import random

import pytest
import torch
import torch.distributed as dist

from harness import workers
from random_cases import CASES, DTYPES, assert_equal_but_for_rounding, by_gloo, draw, random_shape
from rueda.world import World, current


def check_case(world: World, choose: random.Random, number: int) -> None:
    kind = choose.choice(["all_reduce", "all_reduce_", "begin_all_reduce", "broadcast", "all_gather"])
    # What is begun goes through torch itself, which has not all types.
    dtype = choose.choice(DTYPES if kind != "begin_all_reduce" else (torch.float32, torch.float64))
    shape = random_shape(choose)
    operation = choose.choice(["sum", "min", "max", "product", *["mean"] * dtype.is_floating_point])
    mine = draw(shape, dtype, world.size * number + world.rank)
    if len(shape) > 1 and choose.random() < 0.3:
        mine = mine.transpose(0, -1)
    before, source = mine.clone(), choose.randrange(world.size)
    what = f"case {number}: {kind} {operation} of {dtype}{list(mine.shape)}"
    if kind == "broadcast":
        expected = mine.contiguous().clone().view(-1).view(torch.uint8)
        dist.broadcast(expected, source)
        assert torch.equal(world.broadcast(mine, source), expected.view(dtype).view(mine.shape)), what
    elif kind == "all_gather":
        flat = mine.contiguous().view(-1).view(torch.uint8)
        parts = [torch.empty_like(flat) for _ in range(world.size)]
        dist.all_gather(parts, flat)
        found = world.all_gather(mine)
        assert [part.shape for part in found] == [mine.shape] * world.size, what
        assert all(torch.equal(a.contiguous().view(-1).view(torch.uint8), b) for a, b in zip(found, parts, strict=True))
    elif kind == "begin_all_reduce":
        expected = by_gloo(mine, "sum")
        assert_equal_but_for_rounding(world.begin_all_reduce(mine)(), expected, what)
    else:
        expected = by_gloo(mine, operation)
        result = getattr(world, kind)(mine, operation)
        assert_equal_but_for_rounding(result, expected, what)
        assert result is mine if kind == "all_reduce_" else torch.equal(mine, before), what


@pytest.mark.parametrize("num_cases", [CASES])
@workers(2)
def test_random_cases_on_two_workers(num_cases: int) -> None:
    choose = random.Random(11)
    for number in range(num_cases):
        check_case(current(), choose, number)


@pytest.mark.parametrize("num_cases", [CASES])
@workers(3)
def test_random_cases_on_three_workers(num_cases: int) -> None:
    choose = random.Random(12)
    for number in range(num_cases):
        check_case(current(), choose, number)
