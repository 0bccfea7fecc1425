"""The Keras optimizers equal the torch ones step for step, on the Keras backend of this process.

``test_toolbox_backends.py`` runs this file on the other backends.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import keras
import numpy
import pytest
import torch

import rueda.keras
from frameworks.keras_here import floatx, stepper
from rueda import optim
from rueda.errors import RecipeError
from rueda.keras import Lamb, Lars, MomentumSGD, NovoGrad

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras's own, on torch

SHAPES = {
    "conv/kernel": (3, 3, 2, 4), "conv/bias": (4,), "norm/gamma": (4,), "zeros/kernel": (3, 2),
    "still/kernel": (2, 3), "head/kernel": (6, 5), "plain/kernel": (4, 4),
}  # fmt: skip
RATES = (0.1, 0.1, 0.2, 0.4, 0.4, 0.05, 0.05, 0.05)  # a warm-up and a decay

# name: (Keras optimizer, torch optimizer, options of both, options of Keras, options of torch)
CASES: dict[str, tuple[Any, Any, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "lars": (Lars, optim.LARS, {"trust": 0.1, "weight_decay": 0.1}, {}, {}),
    "lars without decay": (Lars, optim.LARS, {}, {}, {}),
    "lars nesterov": (Lars, optim.LARS, {"trust": 0.1, "nesterov": True, "weight_decay": 0.01}, {}, {}),
    "lars clipped": (Lars, optim.LARS, {"trust": 0.1, "form": "clipped", "momentum": 0.5}, {}, {}),
    "lars no momentum": (Lars, optim.LARS, {"trust": 0.1, "momentum": 0.0}, {"epsilon": 1e-3}, {"eps": 1e-3}),
    "lars all": (Lars, optim.LARS, {"adapt": True, "weight_decay": 0.1, "trust": 0.1}, {}, {}),
    "lars none": (Lars, optim.LARS, {"adapt": False, "weight_decay": 0.1}, {}, {}),
    "lamb": (Lamb, optim.LAMB, {"weight_decay": 0.1}, {}, {}),
    "lamb without decay": (Lamb, optim.LAMB, {}, {}, {}),
    "lamb no debias": (Lamb, optim.LAMB, {"debias": False, "phi": (0.5, 1.5)}, {}, {}),
    "lamb betas": (Lamb, optim.LAMB, {"adapt": True}, {"beta_1": 0.0, "beta_2": 0.9}, {"betas": (0.0, 0.9)}),
    "lamb none": (Lamb, optim.LAMB, {"adapt": False, "weight_decay": 0.1}, {"epsilon": 1e-3}, {"eps": 1e-3}),
    "novograd": (NovoGrad, optim.NovoGrad, {"weight_decay": 0.1}, {}, {}),
    "novograd averaging": (NovoGrad, optim.NovoGrad, {"grad_averaging": True, "adapt": True}, {}, {}),
    "novograd betas": (NovoGrad, optim.NovoGrad, {"weight_decay": 0.1}, {"beta_1": 0.0}, {"betas": (0.0, 0.98)}),
    "sgd": (MomentumSGD, torch.optim.SGD, {"weight_decay": 0.1, "momentum": 0.9}, {}, {}),
    "sgd nesterov": (MomentumSGD, torch.optim.SGD, {"momentum": 0.9, "nesterov": True}, {}, {}),
}


def weights_and_gradients(dtype: str) -> tuple[dict[str, numpy.ndarray], list[list[numpy.ndarray]]]:
    """Make weights (one of zeros) and gradients (one zero at every step, one zero at first, one NaN at the third)."""
    random = numpy.random.default_rng(0)
    weights = {name: random.normal(size=shape).astype(dtype) for name, shape in SHAPES.items()}
    weights["zeros/kernel"] *= 0
    gradients = [[random.normal(size=shape).astype(dtype) for shape in SHAPES.values()] for _ in RATES]
    for step, grads in enumerate(gradients):
        grads[4] *= 0
        grads[6] *= step > 0
    return weights, gradients


def in_torch(
    kind: Any, options: dict[str, Any], dtype: str, gradients: list[Any], excluded: str = ""
) -> list[numpy.ndarray]:
    weights, _ = weights_and_gradients(dtype)
    made = {name: torch.nn.Parameter(torch.tensor(value)) for name, value in weights.items()}
    out = [name for name in made if excluded and excluded in name]
    groups: list[dict[str, Any]] = [{"params": [p for name, p in made.items() if name not in out]}]
    extra: dict[str, Any] = {}
    if kind is torch.optim.SGD:  # it has no `adapt`: biases and norms are a group of their own
        out += [name for name in made if made[name].dim() <= 1]
        groups[0]["params"] = [p for name, p in made.items() if name not in out]
    else:
        extra = {"nonfinite": "skip"}
    if out:
        groups.append({"params": [made[name] for name in out], "weight_decay": 0.0})
        if kind is not torch.optim.SGD:
            groups[-1]["adapt"] = False
    optimizer = kind(groups, lr=1.0, **options, **extra)
    for rate, grads in zip(RATES, gradients, strict=True):
        for group in optimizer.param_groups:
            group["lr"] = rate
        for p, grad in zip(made.values(), grads, strict=True):
            p.grad = torch.tensor(grad)
        optimizer.step()
    return [p.detach().numpy() for p in made.values()]


def in_keras(optimizer: Any, dtype: str, gradients: list[Any], *, compiled: bool) -> list[numpy.ndarray]:
    weights, _ = weights_and_gradients(dtype)
    variables = []
    for name, value in weights.items():
        with keras.name_scope(name.partition("/")[0]):
            variables.append(keras.Variable(value, dtype=dtype, name=name.partition("/")[2]))
    assert [v.path for v in variables] == list(SHAPES)
    step = stepper(optimizer, variables, compiled=compiled)
    for rate, grads in zip(RATES, gradients, strict=True):
        optimizer.learning_rate = rate
        step(grads)
    return [v.numpy() for v in variables]


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-12)])
@pytest.mark.parametrize("name", CASES)
def test_equal_to_torch_step_for_step(name: str, dtype: str, tolerance: float) -> None:
    kind, twin, options, of_keras, of_torch = CASES[name]
    _, gradients = weights_and_gradients(dtype)
    compiled = dtype == "float64" or keras.backend.backend() == "jax"  # JAX compiles each operation otherwise
    with floatx(dtype):
        found = in_keras(kind(1.0, **options, **of_keras), dtype, gradients, compiled=compiled)
    expected = in_torch(twin, {**options, **of_torch}, dtype, gradients)
    for path, mine, theirs in zip(SHAPES, found, expected, strict=True):
        assert numpy.abs(mine - theirs).max() <= tolerance * max(1.0, numpy.abs(theirs).max()), path


@pytest.mark.parametrize("name", ["lars", "lamb", "novograd", "sgd"])
def test_excluded_variables_and_non_finite_gradients(name: str) -> None:
    kind, twin, options, _, _ = CASES[name]
    _, gradients = weights_and_gradients("float32")
    if twin is not torch.optim.SGD:
        gradients[0][0][0, 0, 0, 0] = numpy.inf  # at the first step: there is no state yet
        gradients[3][6][1, 1] = numpy.nan
    with floatx("float32"):
        found = in_keras(kind(1.0, exclude=["^head/"], **options), "float32", gradients, compiled=True)
    expected = in_torch(twin, options, "float32", gradients, "head/")
    for mine, theirs in zip(found, expected, strict=True):
        assert numpy.abs(mine - theirs).max() <= 1e-6 * max(1.0, numpy.abs(theirs).max())
    assert all(numpy.isfinite(mine).all() for mine in found)


def test_keras_own_exclusion_is_kept() -> None:
    optimizer = Lars(1.0, weight_decay=0.5, trust=0.1)
    optimizer.exclude_from_weight_decay(var_names=["kernel"])
    _, gradients = weights_and_gradients("float32")
    found = in_keras(optimizer, "float32", gradients, compiled=False)
    expected = in_torch(optim.LARS, {"trust": 0.1}, "float32", gradients)
    for mine, theirs in zip(found, expected, strict=True):
        numpy.testing.assert_allclose(mine, theirs, atol=1e-6)


def test_defaults_are_those_of_torch() -> None:
    names = {"learning_rate": "lr", "epsilon": "eps"}
    for kind, twin in ((Lars, optim.LARS), (Lamb, optim.LAMB), (NovoGrad, optim.NovoGrad)):
        theirs = {name: p.default for name, p in inspect.signature(twin).parameters.items()}
        if "betas" in theirs:
            theirs["beta_1"], theirs["beta_2"] = theirs["betas"]
        for name, parameter in inspect.signature(kind).parameters.items():
            if name != "options":
                assert parameter.default == theirs[names.get(name, name)], f"{kind.__name__}: {name}"


def test_where_keras_own_lamb_is_equal() -> None:
    """As the docstring says: without decay, with every variable adapted and its epsilon."""
    _, gradients = weights_and_gradients("float32")
    ours = in_keras(Lamb(1.0, epsilon=1e-7, adapt=True), "float32", gradients, compiled=False)
    theirs = in_keras(keras.optimizers.Lamb(1.0), "float32", gradients, compiled=False)
    for mine, other in zip(ours, theirs, strict=True):
        numpy.testing.assert_allclose(mine, other, atol=2e-5)
    theirs = in_keras(keras.optimizers.Lamb(1.0, weight_decay=0.1), "float32", gradients, compiled=False)
    ours = in_keras(Lamb(1.0, epsilon=1e-7, adapt=True, weight_decay=0.1), "float32", gradients, compiled=False)
    assert numpy.abs(ours[0] - theirs[0]).max() > 1e-3


# In a model.


def data() -> tuple[numpy.ndarray, numpy.ndarray]:
    random = numpy.random.default_rng(1)
    x = random.normal(size=(48, 6)).astype("float32")
    return x, (x[:, :3] @ random.normal(size=(3, 2))).astype("float32")


def model(optimizer: Any, *, batch_norm: bool = True) -> Any:
    keras.utils.set_random_seed(3)
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(8, activation="relu", name="first")(inputs)
    hidden = keras.layers.BatchNormalization(momentum=0.5)(hidden) if batch_norm else hidden
    made = keras.Model(inputs, keras.layers.Dense(2, name="head")(hidden))
    made.compile(optimizer=optimizer, loss="mse")
    return made


def fit(made: Any, epochs: int = 1, batch: int = 16, **options: Any) -> list[numpy.ndarray]:
    x, y = data()
    made.fit(x, y, batch_size=batch, epochs=epochs, shuffle=False, verbose=0, **options)
    weights: list[numpy.ndarray] = made.get_weights()
    return weights


OPTIONS: dict[str, Any] = {"weight_decay": 0.01, "exclude": ["^head"], "global_clipnorm": 1.0}
MAKERS = {
    "lars": lambda **o: Lars(0.05, trust=1.0, nesterov=True, **o),
    "lamb": lambda **o: Lamb(0.05, phi=(0.1, 10.0), **o),
    "novograd": lambda **o: NovoGrad(0.05, grad_averaging=True, **o),
    "sgd": lambda **o: MomentumSGD(0.05, nesterov=True, **o),
}


@pytest.mark.parametrize("name", MAKERS)
def test_saved_models_go_on_where_they_ended(name: str, tmp_path: Path) -> None:
    whole = fit(model(MAKERS[name](**OPTIONS)), epochs=2)
    first = model(MAKERS[name](**OPTIONS))
    fit(first)
    first.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.get_config() == first.optimizer.get_config()
    assert type(loaded.optimizer) is type(first.optimizer)
    for mine, theirs in zip(fit(loaded), whole, strict=True):
        numpy.testing.assert_allclose(mine, theirs, atol=1e-6)


@pytest.mark.parametrize("name", MAKERS)
def test_learning_goes_down(name: str) -> None:
    made = model(MAKERS[name]())
    before = made.evaluate(*data(), verbose=0)
    fit(made, epochs=15)
    assert made.evaluate(*data(), verbose=0) < 0.7 * before


def test_gradient_accumulation_is_a_larger_batch() -> None:
    options = {"weight_decay": 0.1, "global_clipnorm": 0.5}
    once = fit(model(Lamb(0.05, **options), batch_norm=False), batch=48, epochs=3)
    parts = fit(model(Lamb(0.05, gradient_accumulation_steps=3, **options), batch_norm=False), batch=16, epochs=3)
    for mine, theirs in zip(parts, once, strict=True):
        numpy.testing.assert_allclose(mine, theirs, atol=1e-6)


def test_the_average_of_the_weights_and_mixed_precision() -> None:
    made = model(Lars(0.5, trust=0.05, use_ema=True, ema_momentum=0.5))
    assert all(numpy.isfinite(w).all() for w in fit(made, epochs=2))
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        assert all(numpy.isfinite(w).all() for w in fit(model(Lamb(0.01)), epochs=2))
    finally:
        keras.config.set_dtype_policy(before)


def test_half_precision_weights_have_float32_state() -> None:
    variable = keras.Variable(numpy.ones((4, 4)), dtype="bfloat16", name="kernel")
    optimizer = Lamb(1e-3)
    step = stepper(optimizer, [variable], compiled=False)
    step([numpy.ones((4, 4), "float32")])
    assert {v.dtype for v in optimizer.variables if v.shape == (4, 4)} == {"float32"}
    assert variable.dtype == "bfloat16"


def test_an_embedding_has_dense_steps() -> None:
    keras.utils.set_random_seed(0)
    made = keras.Sequential([keras.layers.Embedding(10, 4), keras.layers.GlobalAveragePooling1D()])
    made.compile(optimizer=Lars(0.1, trust=0.1), loss="mse")
    made.fit(numpy.array([[1, 2], [3, 4]]), numpy.ones((2, 4)), verbose=0)
    assert numpy.isfinite(made.get_weights()[0]).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Lars(0.1, momentum=1.0), "momentum: expected at least 0 and below 1, got 1.0"),
        (lambda: Lars(0.1, form="round"), "form: expected 'paper' or 'clipped'"),
        (lambda: Lars(-0.1), "learning_rate: expected at least 0"),
        (lambda: Lamb(epsilon=0.0), "eps: expected above 0"),
        (lambda: Lamb(phi=(2, 1)), "phi: expected"),
        (lambda: NovoGrad(beta_1=1.0), "betas: expected both from 0"),
        (lambda: MomentumSGD(0.1, weight_decay=-1.0), "weight_decay: expected at least 0"),
        (lambda: Lamb(adapt="yes"), "adapt: expected None, True or False"),
    ],
)
def test_mistakes_are_told(make: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        make()


def test_horovods_momentum_correction_finds_what_includes_the_rate() -> None:
    """Its callbacks correct lists of these names where there is a ``momentum``: that of LARS, not that of form (a)."""
    variable = keras.Variable(numpy.ones((2, 2), "float32"), name="kernel")
    for optimizer, corrected in ((Lars(0.1), True), (MomentumSGD(0.1), False)):
        optimizer.build([variable])
        assert bool(getattr(optimizer, "_momentums", None) or getattr(optimizer, "momentums", None)) is corrected
    assert not hasattr(NovoGrad(), "momentum")


def test_public_names() -> None:
    assert rueda.keras.__all__ == [
        "GhostBatchNormalization", "Lamb", "Lars", "MomentumSGD", "NovoGrad", "epochs", "schedule",
    ]  # fmt: skip
