"""A function of torch tensors, called with JAX arrays: shared memory, order, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

jax = pytest.importorskip("jax")
jnp = jax.numpy

from rueda.hvd.bridge.jax import host_call  # noqa: E402

X = jnp.arange(6.0)


def double(x: Any) -> Any:
    return host_call(lambda tensors: [tensor * 2 for tensor in tensors], [x], [x])[0]


def test_eager_arrays_share_memory_with_the_tensors() -> None:
    result = torch.arange(5.0)
    seen: list[int] = []

    def function(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        seen.extend(tensor.data_ptr() for tensor in tensors)
        return [result]

    (returned,) = host_call(function, [X], [result])
    assert seen == [X.unsafe_buffer_pointer()]
    assert returned.unsafe_buffer_pointer() == result.data_ptr()


def test_compiled_code_reads_the_array_in_its_own_memory() -> None:
    seen: list[int] = []
    function = jax.jit(lambda x: host_call(lambda tensors: (seen.append(tensors[0].data_ptr()), tensors)[1], [x], [x]))
    (result,) = function(X)
    assert result.tolist() == X.tolist()
    assert seen == [X.unsafe_buffer_pointer()]


def test_a_result_never_shares_memory_with_an_argument() -> None:
    (result,) = host_call(lambda tensors: [tensors[0][2:]], [X], [X])
    assert result.tolist() == [2, 3, 4, 5]
    assert not X.unsafe_buffer_pointer() <= result.unsafe_buffer_pointer() < X.unsafe_buffer_pointer() + X.nbytes


@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
@pytest.mark.parametrize("dtype", ["bool", "bfloat16", "float16", "float32", "int8", "uint8", "int32", "complex64"])
def test_types_and_shapes(dtype: str, shape: tuple[int, ...]) -> None:
    array = jnp.ones(shape, dtype)
    copy = lambda x: host_call(lambda tensors: [tensor.clone() for tensor in tensors], [x], [x])[0]  # noqa: E731
    for result in copy(array), jax.jit(copy)(array):
        assert (result.shape, result.dtype) == (shape, array.dtype) and (result == array).all()


def test_calls_run_once_each_and_in_order() -> None:
    order: list[int] = []

    def call(x: Any, number: int) -> Any:
        return host_call(lambda tensors: (order.append(number), tensors)[1], [x], [x])[0]

    @jax.jit
    def independent(x: Any) -> Any:  # XLA could run these in any order, and leave out the last
        results = [call(x * number, number) for number in range(8)]
        jax.lax.scan(lambda carry, _: (call(carry, 8), None), x, length=2)
        call(X, 9)  # a constant, whose call must not run while the function is traced
        return sum(reversed(results))

    for _ in range(3):
        independent(X)
    call(X, 10)
    assert order == [*range(8), 8, 8, 9] * 3 + [10]


def test_large_arrays_arrive() -> None:  # with io_callback they do not
    large = jnp.ones(1_000_000)
    function = jax.jit(lambda x: double(x) + double(x + 1))
    for _ in range(5):
        result = function(large)
    assert float(result.max()) == float(result.min()) == 6


MESH = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
BATCH = jnp.ones((1, 3))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("transformed", "message"),
    [
        (jax.vmap(double), "within vmap"),
        (jax.vmap(jax.jit(double)), "within vmap"),
        (jax.pmap(double), "within shard_map or pmap"),
        (
            jax.shard_map(double, mesh=MESH, in_specs=jax.P("data"), out_specs=jax.P("data")),
            "within shard_map or pmap",
        ),
    ],
)
def test_transformations_that_would_repeat_a_call_are_refused(transformed: Callable[..., Any], message: str) -> None:
    with pytest.raises(NotImplementedError, match=message):
        transformed(BATCH)


def test_another_shape_than_announced_is_an_error_in_compiled_code() -> None:
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"expected a result of shape \(6,\), got \(7,\)"):
        jax.block_until_ready(jax.jit(lambda x: host_call(lambda _: [torch.ones(7)], [x], [x]))(X))
