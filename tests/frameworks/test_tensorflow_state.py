"""``SyncBatchNormalization`` and the elastic states of ``horovod.tensorflow``, on Keras 3 and tf_keras."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import rueda.hvd.tensorflow as hvd
from harness import workers

tf.get_logger().setLevel("ERROR")


def check_sync_batch_norm() -> None:
    """Batches of different sizes: statistics, outputs and gradients are those of one batch of all rows."""
    hvd.init()
    n, r = hvd.size(), hvd.rank()
    sizes = [3 + 2 * rank for rank in range(n)]
    generator = np.random.default_rng(0)
    start = sum(sizes[:r])
    # The fused kernel of tf_keras keeps moving averages of the unbiased variance.
    plain = {"fused": False} if tf.keras.layers.Layer.__module__.startswith("tf_keras") else {}
    for shape, axis in (((4,), -1), ((2, 2, 3), -1), ((3, 2, 2), 1)):
        # A mean far from zero, where the mean of squares less the square of the mean would lose its digits.
        whole = tf.constant(1000 + generator.normal(size=(sum(sizes), *shape)).astype("float32"))
        weights = tf.constant(generator.normal(size=(sum(sizes), *shape)).astype("float32"))
        mine = slice(start, start + sizes[r])
        results = []
        for layer, rows in (
            (tf.keras.layers.BatchNormalization(axis=axis, momentum=0.5, **plain), slice(None)),
            (hvd.SyncBatchNormalization(axis=axis, momentum=0.5), mine),
        ):
            layer.build(whole[rows].shape)
            x = whole[rows]
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x, training=True)
                loss = tf.reduce_sum(tf.square(y) * weights[rows] + y * weights[rows])
            dx = tape.gradient(loss, x)
            again = layer(x, training=False)
            results.append((y, dx, again, layer.moving_mean, layer.moving_variance))
        for name, whole_one, own in zip(("y", "dx", "again", "mean", "variance"), *results, strict=True):
            part = whole_one[mine] if name in ("y", "dx", "again") else whole_one
            np.testing.assert_allclose(tf.identity(own), tf.identity(part), rtol=2e-3, atol=2e-3, err_msg=name)
    step = tf.function(lambda layer, x: layer(x, training=True))
    layer = hvd.SyncBatchNormalization()
    x = tf.fill([2, 3], float(r))
    layer.build(x.shape)
    np.testing.assert_allclose(step(layer, x), (r - (n - 1) / 2) / np.sqrt(np.var(range(n)) + 1e-3), rtol=1e-5)
    with pytest.raises(ValueError, match="fused=False"):
        hvd.SyncBatchNormalization(fused=True)
    with pytest.raises(ValueError, match="fused=False"):
        hvd.SyncBatchNormalization(fused=None)


@workers(2, framework="tensorflow")
def test_sync_batch_norm_of_keras_3() -> None:
    check_sync_batch_norm()


@workers(3, framework="tf_keras")
def test_sync_batch_norm_of_tf_keras() -> None:
    assert tf.keras.layers.Layer.__module__.startswith("tf_keras")
    check_sync_batch_norm()


def check_states() -> None:
    warnings.filterwarnings("ignore", message="__array__ implementation")  # of Keras 3 with NumPy 2
    hvd.init()
    r = hvd.rank()
    variable = tf.Variable([float(r)] * 2)
    state = hvd.elastic.TensorFlowState([variable], batch=r, seen=[r])
    state.sync()
    assert variable.numpy().tolist() == [0.0, 0.0] and state.batch == 0 and state.seen == [0]
    variable.assign([5.0, 5.0])
    state.batch = 5
    state.commit()
    variable.assign([7.0, 7.0])
    state.batch, _ = 7, state.seen.append(7)
    state.restore()
    assert variable.numpy().tolist() == [5.0, 5.0] and state.batch == 5 and state.seen == [0]

    tf.keras.utils.set_random_seed(r)
    model = tf.keras.Sequential([tf.keras.layers.Dense(2)])
    model.build([None, 3])
    model.compile(tf.keras.optimizers.Adam(0.1), "mse")
    calls: list[Any] = []

    @hvd.elastic.run
    def train(state: Any, goal: int) -> int:
        calls.append([weight.numpy() for weight in model.weights])
        while state.batch < goal:
            state.batch += 1
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(tf.fill([4, 3], r + 1.0))))
            tape = hvd.DistributedGradientTape(tape)
            weights = model.trainable_variables
            model.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            if state.batch == 3 and len(calls) == 1:
                state.on_hosts_updated()
                state.commit()
        return len(calls)

    resets: list[int] = []
    state = hvd.elastic.TensorFlowKerasState(model, batch=0)
    state.register_reset_callbacks([lambda: resets.append(hvd.size())])
    assert train(state, 5) == 2 and resets == [hvd.size()]
    everywhere = hvd.allgather_object([weight.numpy() for weight in [*model.weights]])
    for other in everywhere:
        for a, b in zip(other, everywhere[0], strict=True):
            np.testing.assert_array_equal(a, b)

    @hvd.elastic.run
    def fail(state: Any) -> None:
        state.batch = 9
        hvd.allreduce(tf.ones(2 + r), name="uneven")

    @hvd.elastic.run
    def fail_in_function(state: Any) -> None:
        state.batch = 9
        tf.function(lambda: hvd.allreduce(tf.ones(2 + r), name="uneven in a graph"))()

    before = state.batch
    for failing in (fail, fail_in_function):
        with pytest.raises(hvd.HorovodInternalError, match="the state is that of the last commit"):
            failing(state)
        assert state.batch == before

    for updates, skip_sync in (([1], True), ([1, 1], True), ([2], False), ([1, 2], False), ([3], False)):
        for update in updates:
            state.on_hosts_updated(0, update)
        with pytest.raises(hvd.HostsUpdatedInterrupt) as caught:
            state.check_host_updates()
        assert caught.value.skip_sync == skip_sync
    state.check_host_updates()
    with pytest.raises(ValueError, match="built"):
        hvd.elastic.TensorFlowKerasState(tf.keras.Sequential([tf.keras.layers.Dense(2)]))


@workers(2, framework="tensorflow")
def test_states_with_keras_3() -> None:
    check_states()


@workers(3, framework="tf_keras")
def test_states_with_tf_keras() -> None:
    check_states()


@workers(2, framework="tensorflow")
def test_the_hook_of_tensorflow_1_sessions() -> None:
    hvd.init()
    with tf.Graph().as_default():
        variable = tf.compat.v1.get_variable("v", initializer=float(hvd.rank()))
        with tf.compat.v1.train.MonitoredSession(hooks=[hvd.BroadcastGlobalVariablesHook(1)]) as session:
            assert session.run(variable) == 1.0
