"""Every collective on 2 and 3 workers, with tensors that ride along and tensors that travel, against closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import rueda.hvd.torch as hvd
from harness import workers
from rueda.hvd.common.exceptions import MismatchError
from rueda.hvd.torch import mpi_ops

SMALL, LARGE = 5, 20_000  # elements: with the negotiation, and through a process group
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]


def values(dtype: torch.dtype, size: int, rank: int) -> torch.Tensor:
    """Small whole numbers, different on every rank, exact in every type."""
    return ((torch.arange(size) + rank) % 3 + 1).to(dtype)


def everyone(dtype: torch.dtype, size: int) -> np.ndarray:
    return np.stack([values(dtype, size, rank).double().numpy() for rank in range(hvd.size())])


def check_allreduce() -> None:
    hvd.init()
    n, r = hvd.size(), hvd.rank()
    for dtype in FLOATS + INTEGERS:
        for size in (SMALL, LARGE):
            x = values(dtype, size, r)
            stack = everyone(dtype, size)
            for op, expected in {
                hvd.Sum: stack.sum(0), hvd.Average: stack.mean(0), hvd.Min: stack.min(0), hvd.Max: stack.max(0),
                hvd.Product: stack.prod(0),
            }.items():  # fmt: skip
                if not dtype.is_floating_point:
                    expected = np.trunc(expected)
                y = hvd.allreduce(x, op=op)
                assert y.dtype == dtype and y.shape == x.shape
                np.testing.assert_allclose(y.double().numpy(), expected, rtol=1e-2 if dtype == torch.bfloat16 else 1e-3)
            assert torch.equal(x, values(dtype, size, r))  # out of place
            hvd.allreduce_(x, op=hvd.Sum)
            np.testing.assert_array_equal(x.double().numpy(), stack.sum(0))
    for size in (SMALL, LARGE):
        flags = torch.arange(size) % (n + 1) == r
        number = torch.arange(size) % (n + 1)
        assert torch.equal(hvd.allreduce(flags, op=hvd.Sum), number < n)
        assert torch.equal(hvd.allreduce(~flags, op=hvd.Min), number == n)
        z = torch.complex(torch.full((size,), 1.0), torch.full((size,), float(r)))
        assert torch.equal(hvd.allreduce(z, op=hvd.Sum), z.new_full((size,), complex(n, n * (n - 1) / 2)))
    scaled = hvd.allreduce(torch.full((3,), 2.0), op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
    assert torch.equal(scaled, torch.full((3,), 3.0 * n))
    scaled = hvd.allreduce(torch.full((LARGE,), 2.0), op=hvd.Average, prescale_factor=0.5, postscale_factor=3.0)
    torch.testing.assert_close(scaled, torch.full((LARGE,), 3.0))
    with pytest.warns(DeprecationWarning, match="^Parameter `average` has been replaced with `op`"):
        assert hvd.allreduce(torch.tensor(float(r)), average=False).item() == n * (n - 1) / 2  # the old way; a scalar
    assert hvd.allreduce(torch.zeros(0, 3)).shape == (0, 3)
    square = torch.arange(12.0).view(3, 4).t()  # not contiguous, in place
    hvd.allreduce_(square, op=hvd.Sum)
    assert torch.equal(square, n * torch.arange(12.0).view(3, 4).t())
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        y = hvd.allreduce(torch.full((7,), 1.5), compression=compression)
        assert y.dtype == torch.float32 and torch.equal(y, torch.full((7,), 1.5))


def check_names_and_handles() -> None:
    hvd.init()
    n, r = hvd.size(), hvd.rank()
    order = range(60) if r % 2 else range(59, -1, -1)  # every other rank submits backwards
    handles = {i: hvd.allreduce_async(torch.full((1000,), float(i + r)), name=f"t{i}", op=hvd.Sum) for i in order}
    for i in range(60):
        result = hvd.synchronize(handles[i])
        assert torch.equal(result, torch.full((1000,), n * i + n * (n - 1) / 2))
    assert hvd.synchronize(handles[0]) is None  # Horovod's answer to a handle that was used
    mixed = [torch.ones(3, dtype=dtype) for dtype in (torch.float32, torch.int64, torch.float16)] + [torch.ones(LARGE)]
    for result in (
        hvd.grouped_allreduce(mixed, op=hvd.Sum),
        hvd.synchronize(hvd.grouped_allreduce_async(mixed, op=hvd.Sum, name="group")),
        hvd.grouped_allreduce_([m.clone() for m in mixed], op=hvd.Sum),
    ):
        assert [m.dtype for m in result] == [m.dtype for m in mixed]
        assert all(torch.equal(m, torch.full_like(m, n)) for m in result)
    in_place = torch.ones(4, requires_grad=True)
    hvd.synchronize(hvd.allreduce_async_(in_place, op=hvd.Sum, name="leaf"))
    assert torch.equal(in_place.detach(), torch.full((4,), float(n)))
    handle = hvd.allreduce_async(torch.ones(2), name="polled")
    while not hvd.poll(handle):
        pass
    assert torch.equal(hvd.synchronize(handle), torch.ones(2))


def check_movers() -> None:
    hvd.init()
    n, r = hvd.size(), hvd.rank()
    for dtype in [*FLOATS, *INTEGERS, torch.bool, torch.complex64]:
        for size in (1, LARGE // 4):
            rows = [size * (rank + 1) for rank in range(n)]
            mine = torch.full((rows[r], 2), r % 2).to(dtype)
            expected = torch.cat([torch.full((rows[rank], 2), rank % 2) for rank in range(n)]).to(dtype)
            assert torch.equal(hvd.allgather(mine), expected)  # first dimensions differ
            same = torch.full((size, 2), r % 2).to(dtype)
            assert torch.equal(
                hvd.allgather(same), torch.cat([torch.full((size, 2), q % 2) for q in range(n)]).to(dtype)
            )
            for root in range(n):
                assert torch.equal(hvd.broadcast(same, root), torch.full((size, 2), root % 2).to(dtype))
            copy = same.clone()
            hvd.broadcast_(copy, n - 1)
            assert torch.equal(copy, torch.full((size, 2), (n - 1) % 2).to(dtype))
            # alltoall: rank r sends (destination + 1) * size rows to each destination
            splits = [(d + 1) * size for d in range(n)]
            sent = torch.full((sum(splits), 3), r % 2).to(dtype)
            got, received = hvd.alltoall(sent, splits=torch.tensor(splits))
            assert received.tolist() == [(r + 1) * size] * n
            wanted = torch.cat([torch.full(((r + 1) * size, 3), q % 2) for q in range(n)]).to(dtype)
            assert torch.equal(got, wanted)
            expected = torch.cat([torch.full((size,), q % 2) for q in range(n)]).to(dtype)
            assert torch.equal(hvd.alltoall(torch.full((n * size,), r % 2).to(dtype)), expected)
    assert hvd.allgather(torch.tensor(float(r))).tolist() == list(map(float, range(n)))
    assert hvd.allgather(torch.zeros(0 if r == 0 else 2, 3)).shape == (2 * (n - 1), 3)
    a, b = hvd.grouped_allgather([torch.full((1,), r), torch.full((r, 2), 1.0)])
    assert a.tolist() == list(range(n)) and b.shape == (n * (n - 1) // 2, 2)
    a, b = hvd.synchronize(hvd.grouped_allgather_async([torch.full((LARGE,), r), torch.full((r + 1,), 1.0)]))
    assert a.shape == (n * LARGE,) and b.shape == (n * (n + 1) // 2,)
    assert hvd.synchronize(hvd.broadcast_async(torch.full((2,), r), 1)).tolist() == [1, 1]
    assert hvd.broadcast(torch.full((1, 1, 1), r), np.int64(1), np.str_("n")).item() == 1  # NumPy's types
    target = torch.full((2,), r)
    assert hvd.synchronize(hvd.broadcast_async_(target, 1)) is target and target.tolist() == [1, 1]
    assert hvd.synchronize(hvd.alltoall_async(torch.full((n,), r)))[0].tolist() == list(range(n))
    hvd.barrier()


def check_reducescatter() -> None:
    hvd.init()
    n, r = hvd.size(), hvd.rank()
    for dtype in [*FLOATS, *INTEGERS]:
        for rows in (1, 2 * n, 2 * n + 1, 2400 * n, 2400 * n + 1):
            x = values(dtype, rows, r).view(rows, 1).repeat(1, 2)
            total = everyone(dtype, rows).sum(0)
            share = [rows // n + (q < rows % n) for q in range(n)]
            begin = sum(share[:r])
            expected = np.repeat(total[begin : begin + share[r]][:, None], 2, axis=1)
            y = hvd.reducescatter(x, op=hvd.Sum)
            assert y.dtype == dtype
            np.testing.assert_array_equal(y.double().numpy(), expected)
    mean = hvd.reducescatter(torch.full((n,), float(r)))
    assert mean.item() == (n - 1) / 2
    a, b = hvd.grouped_reducescatter([torch.ones(n, 2), torch.ones(2 * n)], op=hvd.Sum)
    assert torch.equal(a, torch.full((1, 2), float(n))) and torch.equal(b, torch.full((2,), float(n)))
    handle = hvd.grouped_reducescatter_async([torch.ones(n)], op=hvd.Max, postscale_factor=2.0)
    assert hvd.synchronize(handle)[0].tolist() == [2.0]
    assert hvd.synchronize(hvd.reducescatter_async(torch.ones(n), op=hvd.Sum)).item() == n


def check_mismatches() -> None:
    hvd.init()
    r = hvd.rank()
    odd = r == 1
    cases = {
        "shape": lambda: hvd.allreduce(torch.ones(3 if odd else 2), name="m"),
        "large shape": lambda: hvd.allreduce(torch.ones(LARGE + odd), name="m"),
        "dimensions": lambda: hvd.allreduce(torch.ones(2, 1) if odd else torch.ones(2), name="m"),
        "type": lambda: hvd.allreduce(torch.ones(2, dtype=torch.float64 if odd else torch.float32), name="m"),
        "operation": lambda: hvd.allreduce(torch.ones(2), name="m", op=hvd.Sum if odd else hvd.Average),
        "factor": lambda: hvd.allreduce(torch.ones(2), name="m", prescale_factor=2.0 if odd else 1.0),
        "root": lambda: hvd.broadcast(torch.ones(2), 1 if odd else 0, name="m"),
        "kind": lambda: hvd.broadcast(torch.ones(2), 0, name="m") if odd else hvd.allgather(torch.ones(2), name="m"),
        "gather": lambda: hvd.allgather(torch.ones(2, 3 if odd else 4), name="m"),
        "exchange": lambda: hvd.alltoall(torch.ones(hvd.size(), 3 if odd else 4), name="m"),
        "scatter": lambda: hvd.reducescatter(torch.ones(4, 3 if odd else 4), name="m"),
        "group": lambda: hvd.grouped_allreduce([torch.ones(2)] * (3 if odd else 2), name="m"),
    }
    for case, run in cases.items():
        with pytest.raises(MismatchError) as caught:
            run()
        text = str(caught.value)
        assert "'m'" in text and "on rank 1" in text, (case, text)
        told = hvd.allgather(torch.tensor(list(text.encode()), dtype=torch.uint8))
        assert bytes(told.tolist()) == text.encode() * hvd.size(), (
            case
        )  # the same words everywhere; the world is usable
    if hvd.rank() == 0:  # it comes last, so that the others' collective is in flight for as long as they look at it
        hvd.barrier()
    first = hvd.allreduce_async(torch.ones(2), name="twice")
    if hvd.rank() > 0:
        with pytest.raises(ValueError, match=r"'twice': expected a name that is not in flight"):
            hvd.allreduce_async(torch.ones(2), name="twice")
        hvd.barrier()
    assert torch.equal(hvd.synchronize(first), torch.ones(2))
    for wrong in (
        lambda: hvd.alltoall(torch.ones(5), splits=[1] * hvd.size()),
        lambda: hvd.broadcast(torch.ones(1), 99),
        lambda: hvd.allreduce(torch.ones(1), op=17),
        lambda: hvd.allreduce(torch.ones(1), average=True, op=hvd.Sum),
        lambda: hvd.reducescatter(torch.tensor(1.0)),
        lambda: hvd.allreduce(torch.ones(2, dtype=torch.int32), op=hvd.Adasum),
        lambda: hvd.allreduce(torch.ones(2, dtype=torch.bool)),
    ):
        with pytest.raises(ValueError):
            wrong()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()


def check_sparse() -> None:
    hvd.init()
    n, r = hvd.size(), hvd.rank()
    mine = torch.sparse_coo_tensor(
        torch.tensor([[r, 4]]), torch.tensor([[1.0, 2.0], [3.0, 3.0]]), (5, 2), check_invariants=True
    )
    for op, factor in ((hvd.Sum, 1.0), (hvd.Average, 1 / n)):
        result = mpi_ops.synchronize(hvd.sparse_allreduce_async(mine, f"s{op}", op)).to_dense()
        expected = torch.zeros(5, 2)
        expected[:n] += torch.tensor([1.0, 2.0])
        expected[4] += 3.0 * n
        torch.testing.assert_close(result, expected * factor)


def check_the_world() -> None:
    hvd.init()
    hvd.init()  # does nothing
    n = hvd.size()
    assert hvd.is_initialized() and 0 <= hvd.rank() < n
    assert (hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()) == (hvd.rank(), n, 0, 1)
    assert hvd.is_homogeneous() and hvd.gloo_built() and not hvd.mpi_built() and type(hvd.nccl_built()) is int


@workers(2)
def test_allreduce_on_2() -> None:
    check_allreduce()


@workers(3)
def test_allreduce_on_3() -> None:
    check_allreduce()


@workers(2)
def test_names_and_handles_on_2() -> None:
    check_names_and_handles()


@workers(3)
def test_names_and_handles_on_3() -> None:
    check_names_and_handles()


@workers(2)
def test_movers_on_2() -> None:
    check_movers()


@workers(3)
def test_movers_on_3() -> None:
    check_movers()


@workers(2)
def test_reducescatter_on_2() -> None:
    check_reducescatter()


@workers(3)
def test_reducescatter_on_3() -> None:
    check_reducescatter()


@workers(2)
def test_mismatches_on_2() -> None:
    check_mismatches()


@workers(3)
def test_mismatches_on_3() -> None:
    check_mismatches()


@workers(2)
def test_sparse_and_the_world_on_2() -> None:
    check_sparse()
    check_the_world()


@workers(3)
def test_sparse_and_the_world_on_3() -> None:
    check_sparse()
    check_the_world()
