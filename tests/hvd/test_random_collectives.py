"""The collectives of the hvd engine equal those of Gloo, whatever is submitted together, and in whichever order.

A third of the cases repeat an earlier one with other values, under its name.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import rueda.hvd.torch as hvd
from harness import workers
from random_cases import CASES, DTYPES, assert_equal_but_for_rounding, by_gloo, draw, random_shape

OPERATIONS = {"sum": hvd.Sum, "mean": hvd.Average, "min": hvd.Min, "max": hvd.Max, "product": hvd.Product}
KINDS = [*["allreduce"] * 5, "grouped", "reducescatter", "allgather", "broadcast", "alltoall"]
TOGETHER = 8


class Case(NamedTuple):
    """What all ranks of a process set submit under one name; they only differ in their values."""

    name: str
    kind: str
    shapes: list[tuple[int, ...]]
    dtype: torch.dtype
    operation: str
    factors: tuple[float, float]
    in_place: bool
    set_number: int
    source: int


def random_case(choose: random.Random, number: int, num_sets: int) -> Case:
    dtype, kind = choose.choice(DTYPES), choose.choice(KINDS)
    averages = dtype != torch.bool and kind != "alltoall"
    shapes = [random_shape(choose) for _ in range(choose.randint(1, 4) if kind == "grouped" else 1)]
    if kind in ("reducescatter", "allgather", "alltoall"):
        shapes = [shape or (3,) for shape in shapes]
    factors = (choose.choice([0.5, 2.0]), choose.choice([0.5, 3.0])) if dtype.is_floating_point else (1.0, 1.0)
    return Case(
        name=f"case {number}", kind=kind, shapes=shapes, dtype=dtype,
        operation=choose.choice([*OPERATIONS] if averages else ["sum", "min", "max", "product"]),
        factors=factors if choose.random() < 0.2 else (1.0, 1.0), in_place=choose.random() < 0.5,
        set_number=choose.choice([0, choose.randrange(num_sets)]), source=choose.randrange(100),
    )  # fmt: skip


def start(case: Case, tensors: list[Tensor], process_set: Any, members: Sequence[int]) -> Any:
    more: dict[str, Any] = {"name": case.name, "process_set": process_set}
    reduction: dict[str, Any] = {
        "op": OPERATIONS[case.operation], "prescale_factor": case.factors[0], "postscale_factor": case.factors[1],
    }  # fmt: skip
    if case.kind == "allreduce":
        return (hvd.allreduce_async_ if case.in_place else hvd.allreduce_async)(tensors[0], **reduction, **more)
    if case.kind == "grouped":
        begin: Callable[..., int] = hvd.grouped_allreduce_async_ if case.in_place else hvd.grouped_allreduce_async
        return begin(tensors, **reduction, **more)
    if case.kind == "reducescatter":
        return hvd.reducescatter_async(tensors[0], **reduction, **more)
    if case.kind == "broadcast":
        cast = hvd.broadcast_async_ if case.in_place else hvd.broadcast_async
        return cast(tensors[0], members[case.source % len(members)], **more)
    if case.kind == "allgather":
        return hvd.allgather_async(tensors[0], **more)
    return hvd.alltoall_async(tensors[0], splits=splits_of(case, members, hvd.rank()), **more)


def splits_of(case: Case, members: Sequence[int], rank: int) -> list[int]:
    """Return how many rows a rank sends to each member."""
    rows, choose = case.shapes[0][0], random.Random(case.source + rank)
    ends = [0, *sorted(choose.randint(0, rows) for _ in members[1:]), rows]
    return [end - begin for begin, end in pairwise(ends)]


def truth(case: Case, everyone: dict[int, list[Tensor]], members: Sequence[int], group: Any) -> list[Tensor]:
    """Return the results of this rank: reductions by Gloo, and copies of what the others are known to have."""
    mine, position = everyone[hvd.rank()], list(members).index(hvd.rank())
    if case.kind == "broadcast":
        return everyone[members[case.source % len(members)]]
    if case.kind == "allgather":
        return [torch.cat([everyone[rank][0] for rank in members])]
    if case.kind == "alltoall":
        parts = [everyone[rank][0].split(splits_of(case, members, rank))[position] for rank in members]
        return [torch.cat(parts)]
    before, after = case.factors
    scaled = [tensor if before == 1.0 else tensor * before for tensor in mine]
    found = [by_gloo(tensor, case.operation, group) for tensor in scaled]
    found = [tensor if after == 1.0 else tensor * after for tensor in found]
    if case.kind == "reducescatter":
        rows, size = case.shapes[0][0], len(members)
        counts = [rows // size + (rank < rows % size) for rank in range(size)]
        return [found[0].split(counts)[position]]
    return found


def check_cases(num_cases: int, seed: int, sets: list[list[int]]) -> None:
    hvd.init()
    everywhere: Sequence[int] = range(hvd.size())
    process_sets = [hvd.global_process_set, *(hvd.add_process_set(ranks) for ranks in sets)]
    groups = [None, *(dist.new_group(ranks) for ranks in sets)]
    choose, own = random.Random(seed), random.Random(hvd.rank())
    earlier: list[Case] = []
    for first in range(0, num_cases, TOGETHER):
        cases: dict[str, tuple[int, Case]] = {}
        for number in range(first, min(num_cases, first + TOGETHER)):
            case = choose.choice(earlier) if choose.random() < 0.35 and earlier else None
            if case is None or case.name in cases:
                case = random_case(choose, number, len(process_sets))
                earlier = [*earlier[-12:], case]
            cases[case.name] = (number, case)
        begun = []
        for number, case in cases.values():
            members = [everywhere, *sets][case.set_number]
            if hvd.rank() in members:
                everyone = {
                    rank: [draw(s, case.dtype, 40 * number + 4 * rank + n) for n, s in enumerate(case.shapes)]
                    for rank in members
                }
                expected = truth(case, everyone, members, groups[case.set_number])
                begun.append((case, everyone[hvd.rank()], members, expected))
        own.shuffle(begun)
        handles = [start(case, mine, process_sets[case.set_number], members) for case, mine, members, _ in begun]
        for handle, (case, mine, _, expected) in zip(handles, begun, strict=True):
            found = hvd.synchronize(handle)
            results = found if case.kind == "grouped" else [found[0] if case.kind == "alltoall" else found]
            for tensor, result, wanted in zip(mine, results, expected, strict=True):
                assert_equal_but_for_rounding(result, wanted, str(case))
                in_place = case.in_place and case.kind in ("allreduce", "grouped", "broadcast")
                assert not in_place or result.data_ptr() == tensor.data_ptr(), str(case)
    for process_set in process_sets[1:]:
        hvd.remove_process_set(process_set)


@pytest.mark.parametrize("num_cases", [CASES])
@workers(2)
def test_random_cases_on_two_workers(num_cases: int) -> None:
    check_cases(num_cases, 21, [[0], [1]])


@pytest.mark.parametrize("num_cases", [CASES])
@workers(3)
def test_random_cases_on_three_workers(num_cases: int) -> None:
    check_cases(num_cases, 22, [[0, 2], [1, 2], [1]])
