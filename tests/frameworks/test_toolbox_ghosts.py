"""GhostBatchNormalization equals ``rueda.nn``'s ghost batch norm: output, gradients and moving statistics.

On the Keras backend of this process; ``test_toolbox_backends.py`` runs this file on the other backends.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy
import pytest
import torch

from frameworks.keras_here import floatx, layer_pass
from rueda.errors import RecipeError
from rueda.keras import GhostBatchNormalization
from rueda.nn import GhostBatchNorm1d, GhostBatchNorm2d

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras's own, on torch

# examples, ghost size, height and width (none for features alone)
CASES = {
    "whole ghosts": (12, 4, (3, 2)),
    "smaller last": (10, 4, (3, 2)),
    "one ghost": (3, 4, (3, 2)),
    "last of one example": (9, 4, (3, 2)),
    "features": (12, 4, ()),
    "features, smaller last": (14, 4, ()),
    "features, last joins": (13, 4, ()),
    "features, last of one ghost": (5, 4, ()),
    "one value per channel": (9, 4, (1, 1)),
    "ghost larger than batch": (6, 100, ()),
}
CHANNELS = 3


def in_torch(
    x: numpy.ndarray, dy: numpy.ndarray, ghost: int, steps: int, **options: Any
) -> tuple[list[numpy.ndarray], list[numpy.ndarray]]:
    """Call the torch layer on [N, C, ...]; return y, dx, dw, db of the last step, and the running averages."""
    kind = GhostBatchNorm2d if x.ndim == 4 else GhostBatchNorm1d
    layer = kind(CHANNELS, ghost_batch=ghost, eps=1e-3, momentum=0.3, dtype=torch.float64, **options)
    with torch.no_grad():
        if layer.affine:
            layer.weight.copy_(torch.tensor([1.0, 2.0, 0.5]))
            layer.bias.copy_(torch.tensor([0.0, 1.0, -1.0]))
    for _ in range(steps):
        inputs = torch.tensor(x, requires_grad=True)
        y = layer(inputs)
    found = torch.autograd.grad((y * torch.tensor(dy)).sum(), [inputs, *layer.parameters()])
    assert layer.running_mean is not None and layer.running_var is not None
    averages = [layer.running_mean.numpy(), layer.running_var.numpy()]
    return [each.detach().numpy() for each in (y, *found)], averages


def made(shape: tuple[int, ...], ghost: int, axis: int, **options: Any) -> GhostBatchNormalization:
    layer = GhostBatchNormalization(ghost, axis=axis, momentum=0.7, **options)
    layer.build((None, *shape[1:]))
    if layer.scale and layer.center:
        layer.gamma.assign(numpy.array([1.0, 2.0, 0.5]))
        layer.beta.assign(numpy.array([0.0, 1.0, -1.0]))
    return layer


@pytest.mark.parametrize(
    ("case", "axis"), [(case, axis) for case in CASES for axis in ((1, -1) if CASES[case][2] else (1,))]
)
def test_equal_to_the_torch_layer(case: str, axis: int) -> None:
    examples, ghost, pixels = CASES[case]
    random = numpy.random.default_rng(0)
    x, dy = (random.normal(2.0, 3.0, size=(examples, CHANNELS, *pixels)) for _ in range(2))
    last = (lambda a: numpy.moveaxis(a, 1, -1)) if axis == -1 else (lambda a: a)
    with floatx("float64"):
        layer = made(last(x).shape, ghost, axis)
        for _ in range(2):
            found = layer_pass(layer, last(x), last(dy))
    expected, averages = in_torch(x, dy, ghost, steps=2)
    for mine, theirs in zip(found, [last(expected[0]), last(expected[1]), *expected[2:]], strict=True):
        numpy.testing.assert_allclose(mine, theirs, atol=1e-11)
    for mine, average in zip((layer.moving_mean, layer.moving_variance), averages, strict=True):
        numpy.testing.assert_allclose(mine.numpy(), average, atol=1e-12)


def test_without_scale_and_center() -> None:
    random = numpy.random.default_rng(1)
    x, dy = (random.normal(size=(10, CHANNELS, 2, 2)) for _ in range(2))
    with floatx("float64"):
        found = layer_pass(made(x.shape, 4, 1, scale=False, center=False), x, dy)
    expected, _ = in_torch(x, dy, 4, steps=1, affine=False)
    for mine, theirs in zip(found, expected, strict=True):
        numpy.testing.assert_allclose(mine, theirs, atol=1e-11)


def test_masked_values_do_not_count() -> None:
    random = numpy.random.default_rng(2)
    x = random.normal(3.0, 2.0, size=(6, 5, CHANNELS)).astype("float32")
    mask = random.random((6, 5)) < 0.7
    layer = GhostBatchNormalization(4, scale=False, center=False, momentum=0.0, epsilon=1e-6)
    y = keras.ops.convert_to_numpy(layer(keras.ops.convert_to_tensor(x), training=True, mask=mask))
    for ghost in (slice(0, 4), slice(4, 6)):
        values = x[ghost][mask[ghost]]
        expected = (x[ghost] - values.mean(0)) / numpy.sqrt(values.var(0) + 1e-6)
        numpy.testing.assert_allclose(y[ghost], expected, atol=1e-5)
    numpy.testing.assert_allclose(layer.moving_variance.numpy(), values.var(0, ddof=1), rtol=1e-5)


def test_inference_and_a_frozen_layer_are_keras_own() -> None:
    x = keras.ops.convert_to_tensor(numpy.random.default_rng(3).normal(size=(6, CHANNELS)).astype("float32"))
    ours, theirs = GhostBatchNormalization(2), keras.layers.BatchNormalization()
    for layer in (ours, theirs):
        layer.build((None, CHANNELS))
        layer.moving_mean.assign(numpy.array([0.5, 1.0, 2.0]))
    expected = keras.ops.convert_to_numpy(theirs(x, training=False))
    assert (keras.ops.convert_to_numpy(ours(x, training=False)) == expected).all()
    ours.trainable = False
    assert (keras.ops.convert_to_numpy(ours(x, training=True)) == expected).all()
    assert ours.moving_mean.numpy().tolist() == [0.5, 1.0, 2.0]


def test_mixed_precision_computes_in_float32() -> None:
    x = numpy.random.default_rng(4).normal(300.0, 1.0, size=(8, CHANNELS)).astype("float32")
    layer = GhostBatchNormalization(4, dtype="mixed_bfloat16", momentum=0.0)
    y = layer(keras.ops.convert_to_tensor(x), training=True)
    assert keras.backend.standardize_dtype(y.dtype) == "bfloat16"
    assert {v.dtype for v in layer.variables} == {"float32"}
    rounded = keras.ops.convert_to_numpy(keras.ops.cast(keras.ops.cast(x, "bfloat16"), "float32"))
    numpy.testing.assert_allclose(layer.moving_mean.numpy(), rounded[4:].mean(0), rtol=1e-5)


def network() -> Any:
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6, 6, 2))
    hidden = GhostBatchNormalization(4, gamma_regularizer="l2")(keras.layers.Conv2D(4, 3)(inputs))
    made = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(keras.layers.ReLU()(hidden))))
    made.compile(optimizer="sgd", loss="mse")
    return made


def test_a_model_trains_on_uneven_batches_and_is_saved(tmp_path: Path) -> None:
    random = numpy.random.default_rng(5)
    x, y = random.normal(size=(23, 6, 6, 2)).astype("float32"), random.normal(size=(23, 1)).astype("float32")
    trained = network()
    trained.fit(x, y, batch_size=10, epochs=2, verbose=0, validation_data=(x[:5], y[:5]))
    trained.save(tmp_path / "ghost.keras")
    loaded = keras.models.load_model(tmp_path / "ghost.keras")
    assert loaded.layers[2].ghost_batch == 4 and loaded.layers[2].get_config() == trained.layers[2].get_config()
    numpy.testing.assert_allclose(loaded.predict(x, verbose=0), trained.predict(x, verbose=0), atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ghost_batch": 1}, "ghost_batch: expected a whole number of at least 2, got 1"),
        ({"ghost_batch": "8"}, "ghost_batch: expected a whole number"),
        ({"ghost_batch": 8, "renorm": True}, "renorm: expected False with ghosts"),
    ],
)
def test_mistakes_are_told(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        GhostBatchNormalization(**options)
