"""The collectives of ``horovod.tensorflow`` against closed forms: every dtype, process sets, gradients, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import rueda.hvd.tensorflow as hvd
from harness import workers
from rueda.hvd.tensorflow.differentiable import name_of

FLOATS = [tf.float16, tf.bfloat16, tf.float32, tf.float64]
INTEGERS = [tf.uint8, tf.int8, tf.int16, tf.int32, tf.int64]
tf.get_logger().setLevel("ERROR")  # each case is traced anew, which TensorFlow would call expensive
LARGE = 20_000  # elements: sent by a process group; few are sent with the negotiation


def in_function(body: Callable[..., Any]) -> Callable[..., Any]:
    return tf.function(body, autograph=False)


def same(body: Callable[..., Any]) -> Callable[..., Any]:
    return body


def equal(got: Any, expected: Any) -> None:
    np.testing.assert_allclose(tf.cast(got, tf.float64).numpy(), np.broadcast_to(expected, got.shape), rtol=1e-6)


def check_collectives(process_set: hvd.ProcessSet, wrap: Callable[..., Any], size: int) -> None:
    """Check every collective among the members of a process set, for one size of tensor."""
    members = process_set.ranks
    assert members is not None
    n, r = len(members), process_set.rank()
    here: dict[str, Any] = {"process_set": process_set}
    values = np.arange(1.0, n + 1)
    for dtype in [*FLOATS, *INTEGERS]:
        x = tf.fill([size], tf.cast(r + 1, dtype))
        expected = {hvd.Sum: values.sum(), hvd.Min: 1, hvd.Max: n, hvd.Product: values.prod()}
        if dtype in FLOATS:
            expected[hvd.Average] = values.mean()
        for op, value in expected.items():
            result = wrap(lambda x, op=op: hvd.allreduce(x, op=op, **here))(x)
            assert result.dtype == dtype
            equal(result, value)
        gathered = wrap(lambda x: hvd.allgather(x[: r + 1], **here))(x)
        assert gathered.dtype == dtype
        equal(gathered, np.repeat(values, range(1, n + 1)))
        equal(wrap(lambda x: hvd.broadcast(x, members[-1], **here))(x), n)
        swapped, received = wrap(lambda x: hvd.alltoall(tf.tile(x[:1], [n]), splits=[1] * n, **here))(x)
        equal(swapped, values)
        assert swapped.dtype == dtype and received.dtype == tf.int32 and received.numpy().tolist() == [1] * n
        rows = (2 * n + 1) // n + (r < (2 * n + 1) % n)  # the first ranks have one more
        part = wrap(lambda x: hvd.reducescatter(tf.tile(x[:1], [2 * n + 1]), op=hvd.Sum, **here))(x)
        assert part.dtype == dtype and part.shape == [rows]
        equal(part, values.sum())
    for dtype in (tf.bool, tf.complex64):
        gathered = wrap(lambda x: hvd.allgather(x, **here))(tf.cast([r % 2, 1], dtype))
        assert gathered.numpy().tolist() == [value for other in range(n) for value in (other % 2, 1)]
    x = tf.fill([size], float(r + 1))
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        result = wrap(lambda x, c=compression: hvd.allreduce(x, op=hvd.Sum, compression=c, **here))(x)
        assert result.dtype == tf.float32
        equal(result, values.sum())
    factors = {"prescale_factor": 0.5, "postscale_factor": 4.0, **here}
    equal(wrap(lambda x: hvd.allreduce(x, op=hvd.Sum, **factors))(x), 2 * values.sum())
    equal(wrap(lambda x: hvd.allreduce(x, average=None, name="named", **here))(x), values.mean())
    one, two = wrap(lambda x: hvd.grouped_allreduce([x, tf.cast(x, tf.float64)], op=hvd.Sum, **here))(x)
    equal(one, values.sum())
    equal(two, values.sum())
    parts = wrap(lambda x: hvd.grouped_reducescatter([tf.tile(x[:1], [n])] * 2, **here))(x)
    equal(parts[1], values.mean())
    lists = wrap(lambda x: hvd.grouped_allgather([x[:1], tf.cast(x[:2], tf.int32)], **here))(x)
    equal(lists[0], values)
    equal(lists[1], np.repeat(values, 2))
    scalar = wrap(lambda x: hvd.allgather(x[0], **here))(x)
    equal(scalar, values)
    slices = tf.IndexedSlices(tf.fill([2, 3], float(r + 1)), tf.constant([r, 0]), dense_shape=tf.constant([9, 3]))
    for op, divisor in ((hvd.Average, n), (hvd.Sum, 1)):
        reduced = hvd.allreduce(slices, op=op, **here)
        dense = np.zeros((9, 3))
        for other in range(n):
            dense[[other, 0]] += (other + 1) / divisor if other else 0
        dense[0] += 2 / divisor
        assert isinstance(reduced, tf.IndexedSlices)
        equal(tf.convert_to_tensor(reduced), dense)


def check_gradients(process_set: hvd.ProcessSet, wrap: Callable[..., Any], size: int) -> None:
    """Check Horovod's factors: the gradient that arrives at rank r's result is its weight w_r = rank + 1."""
    members = process_set.ranks
    assert members is not None
    n, r = len(members), process_set.rank()
    own = np.array([rank + 1.0 for rank in members])
    w, total = own[r], own.sum()
    here: dict[str, Any] = {"process_set": process_set}

    def gradient(x: Any, function: Callable[..., Any]) -> Any:
        def compute(x: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.add_n([w * tf.reduce_sum(result) for result in tf.nest.flatten(function(x))])
            return tape.gradient(loss, x)

        return wrap(compute)(x)

    x = tf.fill([size], tf.constant(w, tf.float64))
    rows = tf.ones([size + r, 2], tf.float64)
    send = tf.ones([n * size], tf.float64)
    parts = own.repeat(size)
    scaled = {"prescale_factor": 0.5, "postscale_factor": 4.0, **here}
    last = members[-1]
    for got, expected in (
        (gradient(x, lambda x: hvd.allreduce(x, op=hvd.Sum, name="sum", **here)), total),
        (gradient(x, lambda x: hvd.allreduce(x, **here)), total / n),
        (gradient(x, lambda x: hvd.allreduce(x, op=hvd.Sum, **scaled)), 2 * total),
        (gradient(x, lambda x: hvd.allreduce(x, op=hvd.Max, **here)), own.max()),
        (gradient(x, lambda x: hvd.grouped_allreduce([x, 2 * x], op=hvd.Sum, **here)), 3 * total),
        (gradient(rows, lambda x: hvd.allgather(x, name="rows", **here)), total / n),
        (gradient(rows, lambda x: hvd.grouped_allgather([x, 2 * x], **here)), 3 * total / n),
        (gradient(x[0], lambda x: hvd.allgather(x, **here)), total / n),
        (gradient(x, lambda x: hvd.broadcast(x, last, **here)), total / n if r == n - 1 else 0.0),
        (gradient(send, lambda x: hvd.alltoall(x, **here)), parts),
        (gradient(send, lambda x: hvd.alltoall(x, [size] * n, **here)[0]), parts),
        (gradient(send, lambda x: hvd.reducescatter(x, op=hvd.Sum, **here)), n * parts),
        (gradient(send, lambda x: hvd.reducescatter(x, **scaled)), 2 * parts),
        (gradient(send, lambda x: hvd.grouped_reducescatter([x, 2 * x], **here)), 3 * parts),
    ):
        equal(got, expected)


@workers(2, framework="tensorflow")
def test_collectives_on_2() -> None:
    hvd.init()
    for wrap in (same, in_function):
        for size in (3, LARGE):
            check_collectives(hvd.global_process_set, wrap, size)
            check_gradients(hvd.global_process_set, wrap, size)


@workers(3, framework="tensorflow")
def test_collectives_on_3_and_in_process_sets() -> None:
    hvd.init()
    outer, single = hvd.add_process_set([0, 2]), hvd.add_process_set([1])
    for process_set in (hvd.global_process_set, outer if outer.included() else single):
        for wrap in (same, in_function):
            check_collectives(process_set, wrap, 5)
            check_gradients(process_set, wrap, 5)
    for wrap in (same, in_function):
        assert wrap(hvd.rank_op)().numpy() == hvd.rank() == wrap(hvd.local_rank_op)().numpy()
        assert wrap(hvd.size_op)().numpy() == wrap(hvd.local_size_op)().numpy() == 3
        assert wrap(lambda: hvd.size_op(outer.process_set_id))().numpy() == 2
        assert wrap(lambda: hvd.process_set_included_op(outer.process_set_id))().numpy() == int(outer.included())
    hvd.remove_process_set(outer)
    hvd.remove_process_set(single)


@workers(2, framework="tensorflow")
def test_many_calls_of_a_function_match() -> None:
    """Unnamed collectives, in branches and loops, of functions that each rank traces in another order."""
    hvd.init()
    n, r = hvd.size(), hvd.rank()

    def chain(x: Any) -> Any:
        parts = [hvd.allreduce(x * (number + 1), op=hvd.Sum) for number in range(10)]
        parts += [hvd.allgather(x)[:2], hvd.broadcast(x, 1)]
        return tf.stack(parts)

    def loop(x: Any) -> Any:
        for _ in tf.range(4):
            x = hvd.allreduce(x, op=hvd.Sum)
        return x

    first, second = tf.function(chain), tf.function(loop)
    x = tf.fill([2], float(r + 1))
    if r == 0:  # only traced, not run
        second.get_concrete_function(x)
        first.get_concrete_function(tf.TensorSpec([5]))
    for _ in range(3):
        expected = [(number + 1) * 3.0 for number in range(10)] + [1.0, 2.0]
        equal(first(x), np.repeat(np.array(expected)[:, None], 2, axis=1))
        equal(second(x), 3 * n**3)


def test_names_of_a_graph_are_those_of_its_operations() -> None:
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, [2], name="scope/x")
        assert name_of("Allreduce", None, x) == "HorovodAllreduce_scope_x_0"
        assert name_of("Allreduce", "given", x) == "given"
    assert name_of("Allreduce", None, tf.ones(2)) is None


@workers(2, framework="tensorflow")
def test_mistakes_are_errors_on_all_ranks() -> None:
    hvd.init()
    r = hvd.rank()
    with pytest.raises(hvd.HorovodInternalError, match="shape"):
        hvd.allreduce(tf.ones(3 + r), name="shapes")
    with pytest.raises(hvd.HorovodInternalError, match="type"):
        hvd.allreduce(tf.ones(3, tf.float32 if r else tf.float64), name="types")
    with pytest.raises(tf.errors.OpError, match="shape"):
        tf.function(lambda x: hvd.allreduce(x, name="graph"))(tf.ones(3 + r))
    with pytest.raises(ValueError, match="root rank"):
        hvd.broadcast(tf.ones(3), 7)
    with pytest.raises(ValueError, match="splits"):
        hvd.alltoall(tf.ones(3), splits=[1, 1])
    with pytest.raises(ValueError, match="got dtype string"):
        hvd.allreduce(tf.constant("words"))
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), dense_shape=tf.constant([2, 2]))
    with pytest.raises(NotImplementedError, match="sparse_as_dense"):
        hvd.allreduce(slices, op=hvd.Adasum)
    with pytest.raises(NotImplementedError, match="IndexedSlices"):
        hvd.reducescatter(slices)
    with pytest.raises(NotImplementedError, match="op Average or Sum"):
        hvd.allreduce(slices, op=hvd.Max)
    with pytest.raises(RuntimeError, match="where gradients are needed"), tf.GradientTape() as tape:
        x = tf.ones(4)
        tape.watch(x)
        tape.gradient(hvd.reducescatter(x, op=hvd.Max), x)
    equal(hvd.allreduce(tf.ones(3), op=hvd.Sum), 2.0)  # the engine goes on


@workers(2, framework="tensorflow")
def test_objects_variables_join_and_barrier() -> None:
    hvd.init()
    n, r = hvd.size(), hvd.rank()
    assert hvd.broadcast_object({"rank": r}, root_rank=1) == {"rank": 1}
    assert hvd.broadcast_object_fn(root_rank=1)(r) == 1
    assert hvd.allgather_object(r) == [0, 1]
    for wrap in (same, in_function):
        variables = [tf.Variable([float(r)] * 3), tf.Variable(r, dtype=tf.int64), tf.Variable([[r > 0]])]
        wrap(lambda v=variables: hvd.broadcast_variables(v, root_rank=1) and None)()
        assert [v.numpy().tolist() for v in variables] == [[1.0] * 3, 1, [[True]]]
    with pytest.raises(RuntimeError, match="broadcast_variables"):
        hvd.broadcast_global_variables(0)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("v", initializer=float(r))
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(hvd.broadcast_global_variables(1))
        assert session.run(variable) == 1.0
        session.run(variable.assign(float(r)))
        session.run(hvd.broadcast_variables([variable], root_rank=1))
        assert session.run(variable) == 1.0
        assert session.run(hvd.broadcast_([variable], root_rank=0)) == [1.0]
    hvd.barrier()
    assert not hvd.gpu_available("tensorflow") and hvd.check_num_rank_power_of_2(n)
    if r == 0:
        equal(hvd.allreduce(tf.ones(2), op=hvd.Sum, name="joined"), 1.0)  # the other rank has joined: zeros
    assert hvd.join() in (0, 1)
