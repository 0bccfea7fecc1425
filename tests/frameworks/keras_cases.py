"""Bodies of the tests of ``horovod.keras``, which run on the workers of every Keras: each backend, and tf_keras."""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rueda.hvd.keras as hvd
from rueda.hvd.keras import family

STEPS, ROWS = 20, 4


def keras() -> Any:
    hvd.init()
    warnings.filterwarnings("ignore", message="You are saving your model as an HDF5 file")
    warnings.filterwarnings("ignore", message="__array__ implementation")  # of Keras 3 with NumPy 2
    return family.load("tf_keras" if os.environ.get("TF_USE_LEGACY_KERAS") else "keras")


def backend() -> str:
    return family.backend_of(keras().__name__)


def set_floatx(name: str) -> None:
    if backend() == "jax":
        import jax

        jax.config.update("jax_enable_x64", name == "float64")
    (keras().config.set_floatx if keras().__name__ == "keras" else keras().backend.set_floatx)(name)


def data(steps: int = STEPS) -> tuple[Any, Any]:
    """Global batches, one after another, each with ROWS rows of every worker in turn."""
    random = np.random.default_rng(0)
    x = random.normal(size=(steps * hvd.size() * ROWS, 3))
    return x, x @ random.normal(size=(3, 2)) + 0.1 * random.normal(size=(len(x), 2))


def shard(array: Any, rank: int | None = None) -> Any:
    """The rows of one worker."""
    rank = hvd.rank() if rank is None else rank
    return array.reshape(-1, hvd.size(), ROWS, *array.shape[1:])[:, rank].reshape(-1, *array.shape[1:])


def model(seed: int = 0) -> Any:
    layers = keras().layers
    made = keras().Sequential([layers.Input((3,)), layers.Dense(4, "tanh"), layers.Dense(2)])
    random = np.random.default_rng(seed)
    made.set_weights([0.5 * random.normal(size=weight.shape) for weight in made.weights])
    return made


def optimizers() -> dict[str, Callable[[], Any]]:
    made = keras().optimizers
    known = {
        "sgd": lambda: made.SGD(0.05),
        "momentum": lambda: made.SGD(0.05, momentum=0.9),
        "adam": lambda: made.Adam(0.01),
    }
    if keras().__name__ == "keras":
        known["lamb"] = lambda: made.Lamb(0.01)
    else:
        known["legacy momentum"] = lambda: made.legacy.SGD(0.05, momentum=0.9)
        known["legacy adam"] = lambda: made.legacy.Adam(0.01)
    return known


def fit(optimizer: Any, x: Any, y: Any, rows: int, **more: Any) -> Any:
    trained = model()
    options = {name: more.pop(name) for name in ("run_eagerly", "jit_compile") if name in more}
    trained.compile(optimizer=optimizer, loss=keras().losses.MeanSquaredError(), **options)
    trained.fit(x, y, batch_size=rows, shuffle=False, verbose=0, **more)
    return trained


def weights(trained: Any) -> list[Any]:
    return [np.asarray(weight) for weight in trained.get_weights()]


def assert_equal(one: list[Any], other: list[Any], tolerance: float) -> None:
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)


def fit_equals_one_worker(name: str, floatx: str = "float32") -> None:
    """20 steps of ``fit`` give the parameters of one worker with N times the batch."""
    keras()
    set_floatx(floatx)
    try:
        x, y = data()
        ours = fit(hvd.DistributedOptimizer(optimizers()[name]()), shard(x), shard(y), ROWS)
        theirs = fit(optimizers()[name](), x, y, ROWS * hvd.size())
    finally:
        set_floatx("float32")
    assert_equal(weights(ours), weights(theirs), 1e-6 if floatx == "float32" else 1e-10)
    assert any(np.abs(a - b).max() > 1e-3 for a, b in zip(weights(ours), weights(model()), strict=True))


def updates_equal_one_worker_in_float64() -> None:
    """20 updates by given gradients: layers of Keras 3 round products to float32 on torch and JAX, updates do not."""
    convert = keras().ops.convert_to_tensor
    set_floatx("float64")
    try:
        for name, make in optimizers().items():
            ours, theirs = hvd.DistributedOptimizer(make()), make()
            mine, expected = ([keras().Variable(np.ones(shape)) for shape in ((3, 4), (5,))] for _ in range(2))
            random = np.random.default_rng(2)
            for _ in range(STEPS):
                given = [random.normal(size=(hvd.size(), *variable.shape)) for variable in mine]
                ours.apply([convert(gradient[hvd.rank()]) for gradient in given], mine)
                theirs.apply([convert(gradient.mean(0)) for gradient in given], expected)
            assert mine[0].dtype == "float64", name
            assert_equal([np.asarray(v.numpy()) for v in mine], [np.asarray(v.numpy()) for v in expected], 1e-10)
    finally:
        set_floatx("float32")


def train_step(trained: Any, optimizer: Any) -> Callable[[Any, Any], None]:
    """A step of a loop as people write it on this backend."""
    if backend() == "tensorflow":
        import tensorflow as tf

        @tf.function
        def step(x: Any, y: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((trained(x, training=True) - y) ** 2)
            variables = trained.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

        return step
    if backend() == "torch":
        import torch

        def step(x: Any, y: Any) -> None:
            trained.zero_grad()
            ((trained(torch.as_tensor(x), training=True) - torch.as_tensor(y)) ** 2).mean().backward()
            variables = trained.trainable_variables
            with torch.no_grad():
                optimizer.apply([variable.value.grad for variable in variables], variables)

        return step
    import jax

    optimizer.build(trained.trainable_variables)
    fixed = [variable.value for variable in trained.non_trainable_variables]

    def loss(variables: Any, x: Any, y: Any) -> Any:
        return ((trained.stateless_call(variables, fixed, x, training=True)[0] - y) ** 2).mean()

    @jax.jit
    def update(variables: Any, state: Any, x: Any, y: Any) -> Any:
        return optimizer.stateless_apply(state, jax.grad(loss)(variables, x, y), variables)

    def step(x: Any, y: Any) -> None:
        variables, state = [[v.value for v in owner] for owner in (trained.trainable_variables, optimizer.variables)]
        variables, state = update(variables, state, x, y)
        for owner, values in ((trained.trainable_variables, variables), (optimizer.variables, state)):
            for variable, value in zip(owner, values, strict=True):
                variable.assign(value)

    return step


def loop(optimizer: Any, x: Any, y: Any, rows: int) -> Any:
    trained = model()
    step = train_step(trained, optimizer)
    x, y = (array.astype(keras().backend.floatx()) for array in (x, y))
    for start in range(0, len(x), rows):
        step(x[start : start + rows], y[start : start + rows])
    return trained


def loop_equals_one_worker() -> None:
    """A loop of one's own gives the same, for momentum and Adam."""
    keras()
    x, y = data()
    for name in ("momentum", "adam"):
        ours = loop(hvd.DistributedOptimizer(optimizers()[name]()), shard(x), shard(y), ROWS)
        theirs = loop(optimizers()[name](), x, y, ROWS * hvd.size())
        assert_equal(weights(ours), weights(theirs), 1e-6)


def uneven_batches_count_equally() -> None:
    """The last batch has two rows on rank 0, one elsewhere: the average is that of the workers' gradients."""
    keras()
    x, y = data(2)
    num_rows = [ROWS + (2 if rank == 0 else 1) for rank in range(hvd.size())]
    own = num_rows[hvd.rank()]
    ours = fit(hvd.DistributedOptimizer(keras().optimizers.SGD(0.1)), shard(x)[:own], shard(y)[:own], ROWS)
    expected = weights(model())
    for start in (0, ROWS):
        changes = []
        for rank, total in enumerate(num_rows):
            one = model()
            one.set_weights(expected)
            one.compile(optimizer=keras().optimizers.SGD(0.1), loss="mse")
            rows = slice(start, min(start + ROWS, total))
            one.train_on_batch(shard(x, rank)[rows], shard(y, rank)[rows])
            changes.append([new - old for new, old in zip(weights(one), expected, strict=True)])
        expected = [old + sum(change) / hvd.size() for old, *change in zip(expected, *changes, strict=True)]
    assert_equal(weights(ours), expected, 1e-6)


def accumulation_equals_the_accumulated_batch() -> None:
    """Two batches a step, averaged or summed, are one batch of twice the rows."""
    keras()
    x, y = data(8)
    for average, rate in ((True, 0.1), (False, 0.05)):
        plain = keras().optimizers.SGD(rate, momentum=0.9)
        optimizer = hvd.DistributedOptimizer(plain, backward_passes_per_step=2, average_aggregated_gradients=average)
        ours = fit(optimizer, shard(x), shard(y), ROWS)
        theirs = fit(keras().optimizers.SGD(0.1, momentum=0.9), x, y, 2 * ROWS * hvd.size())
        assert_equal(weights(ours), weights(theirs), 1e-6)


def options_of_the_exchange() -> None:
    """Compression, a predivide factor, Sum, eager steps, groups: the same parameters as one worker, or nearly."""
    keras()
    x, y = data(4)
    plain = keras().optimizers.SGD
    expected = weights(fit(plain(0.1), x, y, ROWS * hvd.size()))
    cases = [
        ({"gradient_predivide_factor": 2.0}, 0.1, 1e-6),
        ({"op": hvd.Sum}, 0.1 / hvd.size(), 1e-6),
        ({"compression": hvd.Compression.fp16, "groups": 2}, 0.1, 2e-3),
    ]
    for options, rate, tolerance in cases:
        ours = fit(hvd.DistributedOptimizer(plain(rate), **options), shard(x), shard(y), ROWS)
        assert_equal(weights(ours), expected, tolerance)
    ours = fit(hvd.DistributedOptimizer(plain(0.1)), shard(x), shard(y), ROWS, run_eagerly=True)
    assert_equal(weights(ours), expected, 1e-6)


def local_variables_keep_their_gradients() -> None:
    """The last layer is each worker's own; its gradients are divided by the number of workers."""
    keras()
    x, y = data(1)
    ours = model()
    optimizer = hvd.PartialDistributedOptimizer(keras().optimizers.SGD(0.1), local_layers=ours.layers[-1])
    ours.compile(optimizer=optimizer, loss="mse")
    ours.fit(shard(x), shard(y), batch_size=ROWS, shuffle=False, verbose=0)
    alone = fit(keras().optimizers.SGD(0.1 / hvd.size()), shard(x), shard(y), ROWS)
    whole = fit(keras().optimizers.SGD(0.1), x, y, ROWS * hvd.size())
    assert_equal(weights(ours)[2:], weights(alone)[2:], 1e-6)
    assert_equal(weights(ours)[:2], weights(whole)[:2], 1e-6)


def process_sets_train_by_themselves() -> None:
    """Ranks outside of the process set train alone; two sets give two models."""
    keras()
    x, y = data(2)
    first = hvd.add_process_set([0])
    ours = fit(hvd.DistributedOptimizer(keras().optimizers.SGD(0.1), process_set=first), shard(x), shard(y), ROWS)
    assert_equal(weights(ours), weights(fit(keras().optimizers.SGD(0.1), shard(x), shard(y), ROWS)), 1e-7)
    hvd.remove_process_set(first)


def class_and_configuration_are_kept() -> None:
    made = keras().optimizers
    plain = made.SGD(0.25, momentum=0.5)
    ours = hvd.DistributedOptimizer(plain)
    assert isinstance(ours, made.SGD) and type(ours).__name__ == "SGD" and ours is not plain
    assert ours.get_config() == plain.get_config()
    assert made.serialize(ours) == made.serialize(plain)
    copied = type(ours).from_config(ours.get_config())
    assert float(np.asarray(copied.learning_rate)) == 0.25 and copied.momentum == 0.5
    again = hvd.DistributedOptimizer(ours)
    assert isinstance(again, made.SGD)
    for wrong in ({"backward_passes_per_step": 0}, {"groups": -1}, {"gradient_predivide_factor": 2.0, "op": hvd.Sum}):
        with pytest.raises(ValueError, match="expected"):
            hvd.DistributedOptimizer(plain, **wrong)


def saved_models_load(folder: str, suffixes: tuple[str, ...]) -> None:
    """A saved model trains on with its optimizer's state, by hvd.load_model and, from plain Keras, too."""
    keras()
    x, y = data(4)
    half = len(shard(x)) // 2
    for distributed in (True, False):
        for suffix in suffixes:
            path = os.path.join(folder, f"{distributed}{suffix}")
            adam = keras().optimizers.Adam(0.01)
            saved = fit(hvd.DistributedOptimizer(adam), shard(x)[:half], shard(y)[:half], ROWS)
            if hvd.rank() == 0:
                if not distributed:  # plain Keras loads and saves it
                    saved.save(path + ".first" + suffix)
                    saved = keras().models.load_model(path + ".first" + suffix)
                    assert not hasattr(saved.optimizer, "_hvd")
                saved.save(path)
            hvd.allreduce(0.0, name="saved")
            loaded = hvd.load_model(path)
            assert type(loaded.optimizer).__name__ == "Adam" and hasattr(loaded.optimizer, "_hvd")
            loaded.fit(shard(x)[half:], shard(y)[half:], batch_size=ROWS, shuffle=False, verbose=0)
            theirs = fit(keras().optimizers.Adam(0.01), x, y, ROWS * hvd.size())
            if (keras().__name__, suffix) != ("keras", ".h5"):  # Keras 3 does not load an optimizer's state from it
                assert_equal(weights(loaded), weights(theirs), 1e-6)


def overflow_on_one_rank_skips_the_step_on_all(passes: int = 1) -> None:
    """Both ways to combine a LossScaleOptimizer; an infinite gradient on rank 1 in the second of four steps."""
    package = keras()
    scaler = package.optimizers.LossScaleOptimizer if package.__name__ == "keras" else None
    scaler = scaler or package.mixed_precision.LossScaleOptimizer
    x, y = data(4 * passes)
    x, y = shard(x), shard(y)
    bad = slice(passes * ROWS, (passes + 1) * ROWS)
    kept = [row for row in range(len(x)) if not passes * ROWS <= row < 2 * passes * ROWS]
    y_bad = y.copy()
    if hvd.rank() == 1:
        y_bad[bad] = 1e38
    options: Any = {"backward_passes_per_step": passes, "average_aggregated_gradients": True}
    plain = lambda: package.optimizers.SGD(0.1)  # noqa: E731
    if passes > 1:
        # A pass that overflows is left out; the passes around it are accumulated. Only equality is asked for.
        ways = [scaler(hvd.DistributedOptimizer(plain(), **options))]
    else:
        ways = [hvd.DistributedOptimizer(scaler(plain())), scaler(hvd.DistributedOptimizer(plain()))]
    for optimizer in ways:
        ours = fit(optimizer, x, y_bad, ROWS)
        values = [float(weight.sum()) for weight in weights(ours)]
        assert np.isfinite(values).all()
        mean = np.asarray(hvd.allreduce(np.array(values), name="mean"))
        np.testing.assert_allclose(mean, values, rtol=1e-6)
        if passes == 1:
            expected = fit(hvd.DistributedOptimizer(plain()), x[kept], y[kept], ROWS)
            assert_equal(weights(ours), weights(expected), 1e-6)


def callbacks_do_what_they_say() -> None:
    package = keras()
    x, y = data(4)
    rates: list[float] = []

    class Rates(package.callbacks.Callback):  # type: ignore[name-defined,misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            rates.append(float(np.asarray(self.model.optimizer.learning_rate)))

    size, epochs, steps = hvd.size(), 3, 4
    # Broadcast: the weights of rank 0, and of its optimizer, whatever each rank began with.
    trained = model(seed=hvd.rank())
    trained.compile(optimizer=hvd.DistributedOptimizer(package.optimizers.SGD(0.8)), loss="mse")
    warmup = hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.8, warmup_epochs=2, verbose=1)
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        warmup,
        Rates(),
    ]
    assert all(isinstance(callback, package.callbacks.Callback) for callback in callbacks)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        history = trained.fit(
            shard(x), shard(y), batch_size=ROWS, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks
        ).history
    line = "\nEpoch 2: finished gradual learning rate warmup to 0.8.\n"
    assert printed.getvalue() == (line if hvd.rank() == 0 else "")
    closed = [0.8 / size * (1 + (size - 1) * min(1.0, (step + 1) / (2 * steps))) for step in range(epochs * steps)]
    np.testing.assert_allclose(rates, closed, rtol=1e-6)
    np.testing.assert_allclose(history["lr"], [closed[steps - 1], 0.8, 0.8], rtol=1e-6)
    for weight in weights(trained):
        np.testing.assert_allclose(np.asarray(hvd.allreduce(weight)), weight, rtol=1e-6)
    losses = np.asarray(hvd.allgather(np.array(history["loss"])[None]))
    np.testing.assert_allclose(losses, np.repeat(losses[:1], size, axis=0), rtol=1e-7)
    # A staircase, a constant, and momentum correction: the velocity is multiplied by the ratio of the rates.
    rates.clear()
    trained = model()
    trained.compile(optimizer=hvd.DistributedOptimizer(package.optimizers.SGD(0.1, momentum=0.9)), loss="mse")
    schedule = hvd.callbacks.LearningRateScheduleCallback(initial_lr=0.1, multiplier=0.5, start_epoch=1)
    trained.fit(shard(x), shard(y), batch_size=ROWS, epochs=3, shuffle=False, verbose=0, callbacks=[schedule, Rates()])
    np.testing.assert_allclose(rates, np.repeat([0.1, 0.1, 0.05], steps), rtol=1e-6)
    expected = momentum_by_hand(x, y, np.repeat([0.1, 0.1, 0.05], steps))
    assert_equal(weights(trained), expected, 1e-5)


def momentum_by_hand(x: Any, y: Any, rates: Any) -> list[Any]:
    """SGD with momentum in float64, whose velocity is corrected when the rate changes, on the global batches."""
    w1, b1, w2, b2 = (weight.astype("float64") for weight in weights(model()))
    values, velocities, old = [w1, b1, w2, b2], [0.0] * 4, rates[0]
    rows = ROWS * hvd.size()
    for step, rate in enumerate(rates):
        start = step * rows % len(x)
        a, target = x[start : start + rows], y[start : start + rows]
        hidden = np.tanh(a @ values[0] + values[1])
        error = 2 * (hidden @ values[2] + values[3] - target) / target.size
        back = error @ values[2].T * (1 - hidden**2)
        gradients = [a.T @ back, back.sum(0), hidden.T @ error, error.sum(0)]
        velocities = [0.9 * v * rate / old - rate * g for v, g in zip(velocities, gradients, strict=True)]
        values = [value + v for value, v in zip(values, velocities, strict=True)]
        old = rate
    return values


def collectives_of_values() -> None:
    keras()
    size, rank = hvd.size(), hvd.rank()
    mean = (size - 1) / 2
    assert float(hvd.allreduce(float(rank))) == mean
    assert float(hvd.allreduce(float(rank), op=hvd.Sum, postscale_factor=2.0)) == 2 * mean * size
    assert np.asarray(hvd.allgather([[float(rank)]] * (rank + 1))).ravel().tolist() == [
        float(r) for r in range(size) for _ in range(r + 1)
    ]
    assert np.asarray(hvd.broadcast([float(rank), 1.0], 1)).tolist() == [1.0, 1.0]
    part = np.asarray(hvd.reducescatter(np.arange(size, dtype="float32") + rank, op=hvd.Sum))
    assert part.tolist() == [size * rank + mean * size]
    with pytest.raises(RuntimeError, match="eager"):
        hvd.broadcast_global_variables(0)


def embeddings(sparse_as_dense: bool = False) -> None:
    """Gradients of an embedding are IndexedSlices on TensorFlow: gathered, not summed, unless told otherwise."""
    layers = keras().layers
    x = np.arange(2 * hvd.size() * ROWS).reshape(-1, 1) % 5
    y = np.linspace(-1, 1, len(x))[:, None]

    def train(optimizer: Any, x: Any, y: Any, rows: int) -> list[Any]:
        made = keras().Sequential([layers.Input((1,)), layers.Embedding(7, 2), layers.Flatten(), layers.Dense(1)])
        random = np.random.default_rng(1)
        made.set_weights([random.normal(size=weight.shape) for weight in made.weights])
        made.compile(optimizer=optimizer, loss="mse")
        made.fit(x, y, batch_size=rows, shuffle=False, verbose=0)
        return weights(made)

    plain = keras().optimizers.SGD(0.1)
    ours = train(hvd.DistributedOptimizer(plain, sparse_as_dense=sparse_as_dense), shard(x), shard(y), ROWS)
    assert_equal(ours, train(keras().optimizers.SGD(0.1), x, y, ROWS * hvd.size()), 1e-6)


def elastic_state() -> None:
    """A state is broadcast, committed by its callbacks and restored."""
    keras()
    x, y = data(4)
    trained = model(seed=hvd.rank())
    trained.compile(optimizer=hvd.DistributedOptimizer(keras().optimizers.SGD(0.1, momentum=0.9)), loss="mse")
    trained.fit(shard(x)[:ROWS], shard(y)[:ROWS], batch_size=ROWS, shuffle=False, verbose=0)
    state = hvd.elastic.KerasState(trained, batch=0, epoch=hvd.rank())
    seen: list[tuple[int, int]] = []

    @hvd.elastic.run
    def train(state: Any) -> None:
        begun = weights(trained)
        for weight in begun:
            np.testing.assert_allclose(np.asarray(hvd.allreduce(weight)), weight, rtol=1e-6)
        assert state.epoch == 0  # rank 0's
        callbacks = [
            hvd.elastic.CommitStateCallback(state, batches_per_commit=2),
            hvd.elastic.UpdateBatchStateCallback(state),
            hvd.elastic.UpdateEpochStateCallback(state),
        ]
        trained.fit(shard(x), shard(y), batch_size=ROWS, epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
        seen.append((state.batch, state.epoch))

    train(state)
    assert seen == [(0, 2)]
    state.commit()
    committed = weights(trained)
    trained.fit(shard(x), shard(y), batch_size=ROWS, shuffle=False, verbose=0)
    state.epoch = 7
    state.restore()
    assert_equal(weights(trained), committed, 0.0)
    assert state.epoch == 2


def xla_is_turned_off() -> None:
    """A model that asks for XLA trains without it, and rank 0 says so; a plain optimizer keeps it."""
    package = keras()
    x, y = data(2)
    with contextlib.redirect_stderr(io.StringIO()) as told:
        ours = fit(hvd.DistributedOptimizer(package.optimizers.SGD(0.1)), shard(x), shard(y), ROWS, jit_compile=True)
    assert ours.jit_compile is False
    assert told.getvalue().count("rueda: jit_compile is off for this model") == (hvd.rank() == 0)
    plain = model()
    plain.compile(optimizer="sgd", loss="mse", jit_compile=True)
    assert plain.jit_compile is True
    best = hvd.callbacks.BestModelCheckpoint(monitor="loss")
    assert isinstance(best, package.callbacks.ModelCheckpoint) and best.save_best_only and best.filepath is None
    with pytest.raises(ValueError, match="expected a filepath"):
        ours.fit(shard(x), shard(y), verbose=0, callbacks=[best])


EVERY = "Adadelta Adafactor Adagrad Adam AdamW Adamax Ftrl Lamb Lion Muon Nadam RMSprop SGD ScheduleFreeAdamW"


def every_optimizer_is_wrapped() -> None:
    """Three updates of each optimizer that Keras 3 has, of one made of two, and of a user's own."""
    package = keras()
    known = [name for name in EVERY.split() if hasattr(package.optimizers, name)]

    @package.saving.register_keras_serializable(package="mine")
    class Sign(package.optimizers.SGD):  # type: ignore[name-defined,misc]
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            self.assign_sub(variable, package.ops.sign(gradient) * learning_rate)

    makers: dict[str, Callable[[], Any]] = {name: getattr(package.optimizers, name) for name in known}
    makers["Sign"] = lambda: Sign(0.1)
    if hasattr(package.optimizers, "MultiOptimizer"):
        makers["MultiOptimizer"] = lambda: package.optimizers.MultiOptimizer(
            package.optimizers.OptimizerMap(package.optimizers.SGD(0.1), {".*bias": package.optimizers.Adam(0.1)})
        )
    for name, make in makers.items():
        ours, theirs = hvd.DistributedOptimizer(make()), make()
        assert (
            package.optimizers.serialize(ours)["registered_name"]
            == package.optimizers.serialize(theirs)["registered_name"]
        )
        mine, expected = model().trainable_variables, model().trainable_variables
        random = np.random.default_rng(3)
        for _ in range(3):
            given = [random.normal(size=(hvd.size(), *variable.shape)).astype("float32") for variable in mine]
            convert = package.ops.convert_to_tensor
            ours.apply([convert(gradient[hvd.rank()]) for gradient in given], mine)
            theirs.apply([convert(gradient.mean(0)) for gradient in given], expected)
        for a, b in zip(mine, expected, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), atol=2e-6, err_msg=name)
