"""Training with ``DistributedGradientTape``: N workers equal one worker at N times the batch; its arguments."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import rueda.hvd.tensorflow as hvd
from harness import workers

tf.get_logger().setLevel("ERROR")
STEPS, BATCH = 20, 4
OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "lamb": lambda: keras.optimizers.Lamb(0.01),
}


def model_of(dtype: str) -> Any:
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(6, activation="tanh", dtype=dtype), keras.layers.Dense(2, dtype=dtype)]
    return keras.Sequential([keras.Input([5], dtype=dtype), *layers])


def data(step: int, n: int, dtype: str) -> tuple[list[Any], list[Any]]:
    """Return the inputs and targets of each of n workers; those of the last step have different numbers of rows."""
    sizes = [BATCH + (rank if step == STEPS - 1 else 0) for rank in range(n)]
    generator = np.random.default_rng(step)
    x, y = (generator.normal(size=(sum(sizes), width)).astype(dtype) for width in (5, 2))
    ends = np.cumsum(sizes)[:-1]
    return np.split(x, ends), np.split(y, ends)


def train(dtype: str, optimizer: Any, *, in_function: bool, alone: bool) -> list[np.ndarray]:
    """Train, with this rank's batches or alone with those of all ranks, and return the parameters."""
    n, r = hvd.size(), hvd.rank()
    model = model_of(dtype)
    variables = model.trainable_variables

    def step(parts: Any) -> None:
        with tf.GradientTape() as tape:
            # As Horovod: every worker's mean counts equally, whatever its number of examples.
            loss = tf.add_n([tf.reduce_mean(tf.square(model(x) - y)) for x, y in parts]) / len(parts)
        if not alone:
            tape = hvd.DistributedGradientTape(tape)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    optimizer.build(variables)
    run = tf.function(step) if in_function else step
    for number in range(STEPS):
        x, y = data(number, n, dtype)
        if alone and number < STEPS - 1:  # the workers have equally many: one batch of all
            run([(tf.constant(np.concatenate(x)), tf.constant(np.concatenate(y)))])
        else:
            run([(tf.constant(a), tf.constant(b)) for a, b in (zip(x, y, strict=True) if alone else [(x[r], y[r])])])
    return [variable.numpy() for variable in variables]


def check_training() -> None:
    hvd.init()
    for dtype, tolerance in (("float32", 1e-6), ("float64", 1e-10)):
        for name, make in OPTIMIZERS.items():
            expected = train(dtype, make(), in_function=True, alone=True)
            for in_function in (False, True):
                got = train(dtype, make(), in_function=in_function, alone=False)
                worst = max(np.abs(a - b).max() for a, b in zip(got, expected, strict=True))
                assert worst < tolerance, f"{name}, {dtype}, in_function={in_function}: {worst}"


@workers(2, framework="tensorflow")
def test_two_workers_train_as_one() -> None:
    check_training()


@workers(3, framework="tensorflow")
def test_three_workers_train_as_one() -> None:
    check_training()


@workers(2, framework="tensorflow")
def test_the_arguments_of_the_tape() -> None:
    hvd.init()
    n, r = hvd.size(), hvd.rank()
    table, unused = tf.Variable(tf.ones([4, 2])), tf.Variable(1.0)
    weight, local = tf.Variable([2.0, 3.0]), tf.Variable(5.0)

    def gradients(wrap: Any = hvd.DistributedGradientTape, local_source: bool = False, **arguments: Any) -> Any:
        def compute() -> Any:
            with tf.GradientTape() as tape:
                rows = tf.gather(table, [r, 0])
                loss = (r + 1.0) * (tf.reduce_sum(rows) + tf.reduce_sum(weight) + local)
            tape = wrap(tape, **arguments)
            if local_source:
                tape.register_local_source(local)
            return tape.gradient(loss, {"table": table, "rest": [weight, local, unused]})

        return compute()

    dense = np.array([[1 + 1 + 2, 4], [2, 2], [0, 0], [0, 0]]) / n
    dense[:, 1] = dense[:, 0]
    found = gradients()
    assert isinstance(found["table"], tf.IndexedSlices) and found["rest"][2] is None
    np.testing.assert_allclose(tf.convert_to_tensor(found["table"]), dense)
    np.testing.assert_allclose(found["rest"][0], 1.5)
    for arguments in (
        {"sparse_as_dense": True},
        {"gradient_predivide_factor": 4.0},
        {"compression": hvd.Compression.fp16, "groups": 2},
        {"groups": [[weight, local]], "device_dense": "/cpu:0", "device_sparse": "/cpu:0"},
        {"process_set": hvd.global_process_set},
    ):
        found = gradients(**arguments)
        assert isinstance(found["table"], tf.IndexedSlices) != bool(arguments.get("sparse_as_dense"))
        np.testing.assert_allclose(tf.convert_to_tensor(found["table"]), dense)
        np.testing.assert_allclose(found["rest"][0], 1.5)
        np.testing.assert_allclose(found["rest"][1], 1.5)
    np.testing.assert_allclose(gradients(op=hvd.Sum)["rest"][1], 3.0)
    np.testing.assert_allclose(gradients(local_source=True)["rest"][1], (r + 1) / n)
    np.testing.assert_allclose(gradients(local_source=True, scale_local_gradients=False)["rest"][1], r + 1)
    with pytest.raises(ValueError, match="gradient_predivide_factor"):
        gradients(op=hvd.Sum, gradient_predivide_factor=2.0)
    with pytest.raises(ValueError, match="groups"):
        gradients(groups=-1)
    with pytest.warns(DeprecationWarning, match="num_groups"):
        gradients(num_groups=2)
    with hvd.DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
        loss = (r + 1.0) * weight
    for _ in range(2):
        np.testing.assert_allclose(tape.gradient(loss, weight), 1.5)


@workers(2, framework="tensorflow")
def test_a_rank_without_batches_joins() -> None:
    """As Horovod: it contributes zeros, and averages still divide by the number of all ranks."""
    hvd.init()
    n, r = hvd.size(), hvd.rank()
    weight = tf.Variable([1.0, 2.0])

    @tf.function
    def gradient() -> Any:
        with tf.GradientTape() as tape:
            loss = (r + 1.0) * tf.reduce_sum(weight)
        return hvd.DistributedGradientTape(tape).gradient(loss, weight)

    for number in range(2 + r):
        np.testing.assert_allclose(gradient(), 1.5 if number < 2 else 2.0 / n)
    assert hvd.join() == 1
    np.testing.assert_allclose(gradient(), 1.5)


@workers(2, framework="tensorflow")
def test_local_layers_keep_their_gradients() -> None:
    hvd.init()
    n, r = hvd.size(), hvd.rank()
    model = model_of("float32")
    x = tf.fill([2, 5], float(r + 1))

    def gradients(**arguments: Any) -> list[Any]:
        with tf.GradientTape() as tape:
            loss = (r + 1.0) * tf.reduce_sum(model(x))
        wrap = hvd.PartialDistributedGradientTape if "local_layers" in arguments else hvd.DistributedGradientTape
        return wrap(tape, **arguments).gradient(loss, model.trainable_variables)

    with tf.GradientTape() as tape:
        loss = (r + 1.0) * tf.reduce_sum(model(x))
    own = tape.gradient(loss, model.trainable_variables)
    everywhere = gradients()
    for layers in (model.layers[0], [model.layers[0]]):
        partial = gradients(local_layers=layers)
        for got, expected in zip(partial, [*(g / n for g in own[:2]), *everywhere[2:]], strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-6)
    unscaled = gradients(local_layers=model.layers, scale_local_gradients=False)
    for got, expected in zip(unscaled, own, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)
    with pytest.raises(ValueError, match="local_layers"):
        gradients(local_layers=["dense"])
    with tf.GradientTape() as tape:
        loss = (r + 1.0) * tf.reduce_sum(model(x))
    tape = hvd.PartialDistributedGradientTape(tape, local_layers=model.layers[0])
    weights = model.trainable_variables
    kept, reduced = tape.get_local_and_global_gradients(loss, weights)
    assert [id(source) for source, _ in [*kept, *reduced]] == [id(weight) for weight in weights] and len(kept) == 2
    np.testing.assert_allclose(kept[0][1], own[0] / n, rtol=1e-6)
    np.testing.assert_allclose(reduced[0][1], everywhere[2], rtol=1e-6)


@workers(2, framework="tensorflow")
def test_optimizers_of_tensorflow_1_and_local_aggregation() -> None:
    hvd.init()
    n, r = hvd.size(), hvd.rank()
    weight = tf.Variable([1.0, 1.0])
    optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.5))
    optimizer.minimize(lambda: (r + 1.0) * tf.reduce_sum(weight), var_list=[weight])
    np.testing.assert_allclose(weight, 1 - 0.5 * 1.5)

    shared = keras.Variable([1.0, 1.0])  # an optimizer of Keras goes to horovod.keras
    of_keras = hvd.DistributedOptimizer(keras.optimizers.SGD(0.5), gradient_predivide_factor=2.0)
    of_keras.apply_gradients([(tf.fill([2], r + 1.0), shared)])
    np.testing.assert_allclose(shared.numpy(), 1 - 0.5 * 1.5)

    for in_function in (False, True):
        for average in (False, True):
            weight.assign([1.0, 1.0])
            every = hvd.DistributedOptimizer(
                tf.compat.v1.train.GradientDescentOptimizer(0.5), backward_passes_per_step=3,
                average_aggregated_gradients=average,
            )  # fmt: skip

            def step(every: Any = every) -> None:
                every.minimize(lambda: (r + 1.0) * tf.reduce_sum(weight), var_list=[weight])

            run = tf.function(step) if in_function else step
            values = []
            for _ in range(6):
                run()
                values.append(float(weight[0]))
            change = 0.5 * 1.5 * (1 if average else 3)
            assert values == [1.0, 1.0, 1 - change, 1 - change, 1 - change, 1 - 2 * change]

    rows = tf.Variable(tf.ones([3, 2]))  # whose gradient is IndexedSlices
    optimizer.minimize(lambda: (r + 1.0) * tf.reduce_sum(tf.gather(rows, [r])), var_list=[rows])
    np.testing.assert_allclose(rows[:, 0], [1 - 0.5 * 0.5, 1 - 0.5 * 1.0, 1.0])

    helper = hvd.LocalGradientAggregationHelperEager(1, lambda grads, _: hvd.grouped_allreduce(grads))
    local = tf.Variable(0.0)
    helper.register_local_var(local)
    shared, own = helper.compute_gradients([tf.constant(r + 1.0), tf.constant(r + 1.0)], [weight, local])
    assert float(shared) == 1.5 and float(own) == (r + 1) / n
    with pytest.raises(ValueError, match="backward_passes_per_step"):
        hvd.LocalGradientAggregationHelper(0, lambda grads, _: grads)


@workers(2, framework="tensorflow")
def test_local_aggregation_in_a_session_of_tensorflow_1() -> None:
    """Every other pass is applied, every pass is a global step, and no variable is added to those that are saved."""
    hvd.init()
    with tf.Graph().as_default():
        weight = tf.compat.v1.get_variable("w", initializer=[1.0, 1.0])
        step = tf.compat.v1.train.get_or_create_global_step()
        plain = tf.compat.v1.train.GradientDescentOptimizer(0.5)
        optimizer = hvd.DistributedOptimizer(plain, backward_passes_per_step=2)
        train = optimizer.minimize((hvd.rank() + 1.0) * tf.reduce_sum(weight), global_step=step)
        assert len(tf.compat.v1.global_variables()) == 2
        values = []
        with tf.compat.v1.Session() as session:
            session.run([tf.compat.v1.global_variables_initializer(), tf.compat.v1.local_variables_initializer()])
            for _ in range(4):
                session.run(train)
                values.append((float(session.run(weight)[0]), int(session.run(step))))
    assert values == [(1.0, 1), (-0.5, 2), (-0.5, 3), (-2.0, 4)]


@workers(3, framework="tensorflow")
def test_a_rank_outside_the_process_set_keeps_its_gradients() -> None:
    hvd.init()
    pair = hvd.add_process_set([0, 2])
    weight = tf.Variable([1.0, 1.0])
    for wrap in (lambda function: function, tf.function):

        def gradient() -> Any:
            with tf.GradientTape() as tape:
                loss = (hvd.rank() + 1.0) ** 2 * tf.reduce_sum(weight)
            return hvd.DistributedGradientTape(tape, process_set=pair).gradient(loss, [weight])[0]

        np.testing.assert_allclose(wrap(gradient)(), 4.0 if hvd.rank() == 1 else (1.0 + 9.0) / 2)
    hvd.remove_process_set(pair)
