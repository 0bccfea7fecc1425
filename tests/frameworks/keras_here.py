"""What the tests of ``rueda.keras`` share: the Keras backend of this process, compiled steps and gradients on it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy


@contextlib.contextmanager
def floatx(dtype: str) -> Iterator[None]:
    """Let Keras make its variables in this precision; JAX needs JAX_ENABLE_X64=1 for float64."""
    import keras
    import pytest

    if dtype == "float64" and keras.backend.backend() == "jax":
        import jax

        if not jax.config.jax_enable_x64:
            pytest.skip("JAX has no float64 here; test_toolbox_backends.py runs this with JAX_ENABLE_X64=1")
    before = keras.config.floatx()
    keras.config.set_floatx(dtype)
    keras.config.set_dtype_policy(dtype)
    try:
        yield
    finally:
        keras.config.set_floatx(before)
        keras.config.set_dtype_policy(before)


def stepper(optimizer: Any, variables: list[Any], *, compiled: bool) -> Callable[[list[numpy.ndarray]], None]:
    """Return a function that applies gradients, in one compiled function where the backend can."""
    import keras

    backend = keras.backend.backend()
    optimizer.build(variables)
    if backend == "tensorflow":
        import tensorflow as tf

        def apply(*grads: Any) -> None:
            optimizer.apply(list(grads), variables)

        call = tf.function(apply, autograph=False) if compiled else apply
        return lambda grads: call(*(tf.constant(g) for g in grads)) and None
    if backend == "jax" and compiled:
        import jax

        call = jax.jit(optimizer.stateless_apply)

        def apply_stateless(grads: list[numpy.ndarray]) -> None:
            old = [v.value for v in optimizer.variables], list(grads), [v.value for v in variables]
            weights, state = call(*old)
            for variable, value in zip([*variables, *optimizer.variables], [*weights, *state], strict=True):
                variable.assign(value)

        return apply_stateless

    def apply_eagerly(grads: list[numpy.ndarray]) -> None:
        import torch

        with torch.no_grad():
            optimizer.apply([keras.ops.convert_to_tensor(g) for g in grads], variables)

    return apply_eagerly


def layer_pass(layer: Any, x: numpy.ndarray, dy: numpy.ndarray, **options: Any) -> tuple[numpy.ndarray, ...]:
    """Call a built layer in training; return y, dx and the gradients of its trainable variables for the given dy.

    On TensorFlow inside a ``tf.function`` that does not know the number of examples, on JAX inside ``jit``.
    """
    import keras

    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        @tf.function(input_signature=[tf.TensorSpec([None, *x.shape[1:]], x.dtype)] * 2, autograph=False)  # type: ignore[untyped-decorator]
        def both(inputs: Any, upper: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                y = layer(inputs, training=True, **options)
                loss = tf.reduce_sum(y * upper)
            return y, *tape.gradient(loss, [inputs, *(v.value for v in layer.trainable_variables)])

        return tuple(each.numpy() for each in both(tf.constant(x), tf.constant(dy)))
    if backend == "jax":
        import jax

        def loss_of(inputs: Any, trainable: Any, rest: Any) -> Any:
            y, rest = layer.stateless_call(trainable, rest, inputs, training=True, **options)
            return (y * dy).sum(), (y, rest)

        values = [[v.value for v in some] for some in (layer.trainable_variables, layer.non_trainable_variables)]
        grad = jax.jit(jax.value_and_grad(loss_of, argnums=(0, 1), has_aux=True))
        (_, (y, rest)), (dx, dw) = grad(jax.numpy.asarray(x), *values)
        for variable, value in zip(layer.non_trainable_variables, rest, strict=True):
            variable.assign(value)
        return tuple(map(numpy.asarray, (y, dx, *dw)))
    import torch

    inputs = torch.tensor(x, requires_grad=True)
    y = layer(inputs, training=True, **options)
    weights = [v.value for v in layer.trainable_variables]
    found = torch.autograd.grad((y * torch.tensor(dy)).sum(), [inputs, *weights])
    return tuple(each.detach().numpy() for each in (y, *found))
