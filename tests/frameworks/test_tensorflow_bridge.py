"""TensorFlow tensors reach torch and come back without a copy, in eager mode and within a ``tf.function``."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
import torch

from harness import workers
from rueda.hvd.bridge.tensorflow import _DTYPES, host_call, to_tensorflow, to_torch


@pytest.mark.parametrize("dtype", sorted(_DTYPES, key=lambda dtype: dtype.name), ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("shape", [(), (0,), (2, 3), (3, 0)], ids=str)
def test_tensors_share_their_memory_in_both_directions(dtype: Any, shape: tuple[int, ...]) -> None:
    source = tf.cast(tf.reshape(tf.range(tf.reduce_prod(shape)), shape), dtype)
    there = to_torch(source)
    assert there.dtype == getattr(torch, dtype.name) and tuple(there.shape) == shape
    back = to_tensorflow(there)
    assert back.dtype == dtype and tuple(back.shape) == shape
    assert to_torch(back).data_ptr() == there.data_ptr()
    tf.debugging.assert_equal(back, source)


def test_what_tensorflow_cannot_take_as_it_is_is_copied() -> None:
    base = torch.arange(40.0)
    for view in (base[1:9], base.view(5, 8).t()):
        result = to_tensorflow(view)
        assert (result + 1).numpy().tolist() == (view + 1).tolist()
        view.zero_()
        assert result.numpy().any()


def test_a_dtype_without_a_counterpart_is_named() -> None:
    with pytest.raises(ValueError, match="expected a tensor of numbers or bools, got dtype string; convert it"):
        to_torch(tf.constant("words"))


def test_the_call_is_the_same_in_eager_mode_and_in_a_function() -> None:
    seen: list[int] = []

    def double(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        seen.append(len(tensors))
        return [2 * tensor for tensor in tensors]

    def call(first: Any, second: Any) -> list[Any]:
        return host_call(double, [first, second], [first, tf.TensorSpec([None, 2], tf.int64)])

    variable, rows = tf.Variable([1.0, 2.0]), tf.constant([[3, 4]], tf.int64)
    for function in (call, tf.function(call, input_signature=[tf.TensorSpec([2]), tf.TensorSpec([None, 2], tf.int64)])):
        first, second = function(variable, rows)
        assert first.numpy().tolist() == [2.0, 4.0] and second.numpy().tolist() == [[6, 8]]
    assert seen == [2, 2]
    shapes = tf.function(call).get_concrete_function(tf.TensorSpec([2]), tf.TensorSpec([None, 2], tf.int64))
    assert [result.shape.as_list() for result in shapes.outputs] == [[2], [None, 2]]


def test_calls_of_a_function_run_in_the_order_in_which_they_were_traced() -> None:
    order: list[int] = []

    @tf.function
    def many(x: Any) -> Any:
        for number in range(20):
            host_call(lambda tensors, number=number: order.append(number) or [], [x], [])  # type: ignore[misc]
        return x

    for _ in range(3):
        many(tf.ones(3))
    assert order == 3 * [*range(20)]


def test_an_error_of_the_function_arrives() -> None:
    def fail(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        raise ValueError("expected something else")

    with pytest.raises(ValueError, match="expected something else"):
        host_call(fail, [tf.ones(2)], [tf.ones(2)])
    with pytest.raises(tf.errors.InvalidArgumentError, match="ValueError: expected something else"):
        tf.function(lambda x: host_call(fail, [x], [x]))(tf.ones(2))


@workers(2, framework="tensorflow")
def test_workers_of_the_harness_exchange_tensors() -> None:
    import rueda.hvd.torch as hvd

    hvd.init()
    assert tf.config.list_physical_devices("GPU") == []
    x = tf.fill([3], float(hvd.rank() + 1))
    step = tf.function(lambda x: host_call(lambda t: hvd.grouped_allreduce(t, op=hvd.Sum), [x], [x])[0])
    assert step(x).numpy().tolist() == [3.0, 3.0, 3.0]
