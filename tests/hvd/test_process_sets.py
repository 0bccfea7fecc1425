"""Collectives among some of the ranks."""

from __future__ import annotations

import pytest
import torch

import rueda.hvd.torch as hvd
from harness import workers
from rueda.hvd.common.process_sets import get_process_set_ids_and_ranks


@workers(3)
def test_process_sets_work_side_by_side() -> None:
    hvd.init()
    r = hvd.rank()
    outer, alone = hvd.add_process_set([2, 0]), hvd.add_process_set(hvd.ProcessSet([1]))
    assert outer.ranks == [0, 2] and get_process_set_ids_and_ranks()[outer.process_set_id] == [0, 2]
    assert outer.included() == (r != 1) and alone.included() == (r == 1)
    assert hvd.global_process_set.size() == 3 and hvd.global_process_set.ranks == [0, 1, 2]
    mine = outer if r != 1 else alone
    size = mine.size()
    for count in (3, 20_000):
        x = torch.full((count,), float(r))
        # Different numbers of unnamed collectives in the sets do not disturb the count of the world's.
        for _ in range(1 + r % 2):
            total = hvd.allreduce(x, op=hvd.Sum, process_set=mine)
            assert torch.equal(total, torch.full((count,), 2.0 if r != 1 else 1.0))
        assert hvd.allreduce(x, op=hvd.Sum)[0] == 3.0
        assert hvd.allreduce(x, process_set=mine)[0] == 1.0
        assert hvd.allgather(x[: r + 1], process_set=mine).shape == (4 if r != 1 else 2,)
        root = 2 if r != 1 else 1
        assert hvd.broadcast(x, root, process_set=mine)[0] == root  # its number among all
        assert hvd.alltoall(torch.full((size * 2,), r), process_set=mine).tolist() == (
            [0, 0, 2, 2] if r != 1 else [1, 1]
        )
        assert hvd.reducescatter(torch.ones(size), op=hvd.Sum, process_set=mine).item() == size
    hvd.barrier(process_set=mine)
    y = torch.ones(2, requires_grad=True)
    hvd.allreduce(y, op=hvd.Sum, process_set=mine).sum().backward()
    assert y.grad is not None and y.grad.tolist() == [size, size]
    if r == 1:
        with pytest.raises(ValueError, match="rank 1 is not in it"):
            hvd.allreduce(y, process_set=outer)
    with pytest.raises(ValueError, match="these ranks are registered"):
        hvd.add_process_set([0, 2])
    with pytest.raises(ValueError, match="expected ranks from 0 to 2"):
        hvd.add_process_set([0, 3])
    with pytest.raises(RuntimeError, match=r"\[0, 1\] on ranks 0, 2, ranks \[1, 2\] on rank 1"):
        hvd.add_process_set([1, 2] if r == 1 else [0, 1])
    assert hvd.remove_process_set(outer) and not hvd.remove_process_set(outer)
    assert not hvd.remove_process_set(hvd.global_process_set)
    with pytest.raises(ValueError, match="expected a registered set"):
        hvd.allreduce(y, process_set=outer)
    assert hvd.remove_process_set(alone)
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 3.0


@workers(3)
def test_process_sets_at_init_and_an_optimizer_in_one() -> None:
    hvd.shutdown()
    pair = hvd.ProcessSet([0, 1])
    hvd.init(process_sets=[pair])
    assert pair.process_set_id == 1
    if pair.included():
        weight = torch.nn.Parameter(torch.zeros(2))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("w", weight)], process_set=pair)
        for _ in range(3):
            optimizer.zero_grad()
            (weight * hvd.rank()).sum().backward()
            optimizer.step()
        assert weight.tolist() == [-1.5, -1.5]
    # One for all, though rank 2 has made one less before.
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("w", weight)])
    for _ in range(3):
        optimizer.zero_grad()
        (weight * hvd.rank()).sum().backward()
        optimizer.step()
    assert weight.tolist() == [-3.0, -3.0]
    hvd.barrier()
    hvd.shutdown()
    assert pair.process_set_id is None
    hvd.init()
