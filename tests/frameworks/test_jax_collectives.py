"""The collectives of ``rueda.hvd.jax``: values, gradients with Horovod's factors, transformations, errors."""

from __future__ import annotations

from typing import Any

import pytest

from harness import workers

SIZES = [2, 3]


def on(size: int) -> Any:
    return workers(size, framework="jax")


def check_values() -> None:
    import jax
    import jax.numpy as jnp

    import rueda.hvd.jax as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    ranks = range(size)
    tree = {"a": jnp.arange(4.0) + rank, "b": [jnp.full((2, 2), rank), jnp.asarray(1.5 * rank)]}
    half = {"a": jnp.ones(3) * rank}
    for wrap in (lambda function: function, jax.jit):
        mean = wrap(hvd.allreduce)(tree)
        assert mean["a"].tolist() == [x + sum(ranks) / size for x in range(4)]
        assert mean["b"][0].dtype == tree["b"][0].dtype and int(mean["b"][0][0, 0]) == sum(ranks) // size
        assert float(mean["b"][1]) == 1.5 * sum(ranks) / size
        extreme = {op: wrap(lambda tree, op=op: hvd.allreduce(tree, op=op))(half["a"])[0] for op in (hvd.Min, hvd.Max)}
        assert (extreme[hvd.Min], extreme[hvd.Max]) == (0, size - 1)
        for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
            total = wrap(lambda tree: hvd.allreduce(tree, "named", compression, hvd.Sum, 2.0, 3.0))(half)["a"]  # noqa: B023
            assert total.tolist() == [6.0 * sum(ranks)] * 3 and total.dtype == jnp.float32
        gathered = wrap(hvd.allgather)({"rows": jnp.full((2, 3), rank), "scalar": jnp.asarray(rank)})
        assert gathered["rows"].tolist() == [[r] * 3 for r in ranks for _ in range(2)]
        assert gathered["scalar"].tolist() == list(ranks)
        root = wrap(lambda tree: hvd.broadcast(tree, size - 1))(tree)
        assert root["a"].tolist() == [x + size - 1 for x in range(4)] and float(root["b"][1]) == 1.5 * (size - 1)
        rows = jnp.arange(2 * size) + 100 * rank
        assert wrap(hvd.alltoall)(rows).tolist() == [2 * rank + i + 100 * r for r in ranks for i in (0, 1)]
        part = wrap(lambda tree: hvd.reducescatter(tree, op=hvd.Sum))([jnp.arange(size + 1.0), jnp.ones((size, 2))])
        starts, counts = [0, *range(2, size + 1)], [2, *[1] * (size - 1)]  # one row more for the first rank
        assert part[0].tolist() == [size * (starts[rank] + i) for i in range(counts[rank])]
        assert part[1].tolist() == [[size, size]]
    assert hvd.allreduce({}) == {} and hvd.allreduce(rank) == sum(ranks) // size

    # Where shapes differ between the ranks.
    assert hvd.allgather(jnp.full(rank + 1, rank)).tolist() == [r for r in ranks for _ in range(r + 1)]
    output, received = hvd.alltoall(jnp.full(sum(range(1, size + 1)), rank), splits=list(range(1, size + 1)))
    assert output.tolist() == [r for r in ranks for _ in range(rank + 1)] and received.tolist() == [rank + 1] * size

    key, params = hvd.broadcast_parameters((jax.random.key(rank), {"w": jnp.full(3, float(rank))}), root_rank=1)
    assert (jax.random.key_data(key) == jax.random.key_data(jax.random.key(1))).all() and params["w"].tolist() == [
        1
    ] * 3
    assert hvd.broadcast_object({"rank": rank}, 1) == {"rank": 1} and hvd.allgather_object(rank) == list(ranks)
    hvd.barrier()

    few = hvd.add_process_set(range(1, size))
    if few.included():
        assert float(hvd.allreduce(jnp.asarray(1.0 + rank), op=hvd.Sum, process_set=few)) == sum(ranks) + size - 1
    else:
        with pytest.raises(ValueError, match="rank 0 is not in it"):
            jax.jit(lambda x: hvd.allreduce(x, process_set=few))(jnp.ones(1))
    hvd.remove_process_set(few)

    # A rank without data contributes zeros, also to compiled code.
    step = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum))
    for number in range(rank + 1):
        assert step(jnp.ones(2)).tolist() == [size - number] * 2
    assert hvd.join() == size - 1


def check_gradients() -> None:
    """The gradients of sum_i w_i y_i, where w is the rank's own, against closed forms."""
    import jax
    import jax.numpy as jnp

    import rueda.hvd.jax as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    ranks = range(size)
    total = sum(r + 1 for r in ranks)
    cases = {
        "average": (hvd.allreduce, 3, total / size),
        "sum": (lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0), 3, 2.0 * total),
        "compressed": (lambda x: hvd.allreduce(x, compression=hvd.Compression.bf16), 4, total / size),
        "allgather": (hvd.allgather, 2, total / size),
        "broadcast": (lambda x: hvd.broadcast(x, 1), 3, (rank == 1) * total / size),
        "reducescatter": (lambda x: hvd.reducescatter(x, op=hvd.Sum), size, None),
        "alltoall": (hvd.alltoall, size, None),
    }
    for name, (function, rows, expected) in cases.items():
        x = jnp.arange(rows, dtype=jnp.float32) + 1

        def loss(x: Any, function: Any = function) -> Any:
            return ((rank + 1.0) * function(x)).sum()

        for wrap in (lambda function: function, jax.jit):
            value, gradient = wrap(jax.value_and_grad(loss))(x)
            assert jnp.isfinite(value)
            if name == "reducescatter":  # of all parts, each with its rank's weight, times N
                assert gradient.tolist() == [size * (r + 1.0) for r in ranks]
            elif name == "alltoall":  # row r went to rank r
                assert gradient.tolist() == [r + 1.0 for r in ranks]
            else:
                assert jnp.allclose(gradient, expected), (name, gradient, expected)

    # Through several calls, a scan, integers and arguments that need no gradient.
    def many(x: Any) -> Any:
        carry, _ = jax.lax.scan(lambda carry, _: (hvd.allreduce(carry, op=hvd.Sum), None), x, length=2)
        sums = hvd.allreduce({"x": carry, "count": jnp.ones((), jnp.int32)}, op=hvd.Sum)
        return sums["x"].sum() / sums["count"]

    for wrap in (lambda function: function, jax.jit):
        assert jnp.allclose(wrap(jax.grad(many))(jnp.ones(2)), float(size) ** 3 / size)

    with pytest.raises(RuntimeError, match="Average or Sum where gradients"):
        jax.grad(lambda x: hvd.reducescatter(x, op=hvd.Max).sum())(jnp.ones(size))


def check_errors() -> None:
    import jax
    import jax.numpy as jnp

    import rueda.hvd.jax as hvd

    hvd.init()
    size = hvd.size()
    for transformed in (jax.vmap(hvd.allreduce), jax.vmap(jax.jit(jax.grad(lambda x: hvd.allreduce(x).sum())))):
        with pytest.raises(NotImplementedError, match="within vmap"):
            transformed(jnp.ones((2, 3)))
    with pytest.raises(NotImplementedError, match="checkpoint"):
        jax.jit(jax.grad(lambda x: jax.checkpoint(lambda x: jnp.sin(hvd.allreduce(x)))(x).sum()))(jnp.ones(2))
    # A mismatch raises on all ranks, also out of compiled code, and the workers stay connected.
    for function, error in (
        (hvd.allreduce, hvd.HorovodInternalError),
        (jax.jit(hvd.allreduce), jax.errors.JaxRuntimeError),
    ):
        with pytest.raises(error, match="shape"):
            jax.block_until_ready(function(jnp.ones(2 + hvd.rank())))
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"outside of jit where shapes differ"):
        jax.block_until_ready(jax.jit(hvd.allgather)(jnp.ones(1 + hvd.rank())))
    assert float(hvd.allreduce(jnp.ones(()), op=hvd.Sum)) == size


@pytest.mark.parametrize("check", ["check_values", "check_gradients", "check_errors"])
@on(2)
def test_two_workers(check: str) -> None:
    globals()[check]()


@pytest.mark.parametrize("check", ["check_values", "check_gradients"])
@on(3)
def test_three_workers(check: str) -> None:
    globals()[check]()
