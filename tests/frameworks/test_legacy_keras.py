"""`--legacy-keras` with tf_keras and with Keras 3: tensorflow_addons' optimizers and the arguments of Keras 2."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rueda.hvd import alias, legacy_keras

STEPS, RATES = 5, (0.125, 0.125, 0.5, 0.5, 0.0625)  # float32 has them exactly
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "LAMB": ("LAMB", {}),
    "LAMB with decay": ("LAMB", {"weight_decay": 0.1, "exclude_from_weight_decay": ["bias"], "epsilon": 1e-3}),
    "LAMB of older versions": (
        "LAMB", {"weight_decay_rate": 0.1, "exclude_from_layer_adaptation": ["kernel"], "beta_1": 0.5},
    ),
    "NovoGrad": ("NovoGrad", {}),
    "NovoGrad with decay": ("NovoGrad", {"weight_decay": 0.1, "grad_averaging": True, "beta_1": 0.5, "beta_2": 0.25}),
    "NovoGrad with amsgrad": ("NovoGrad", {"amsgrad": True, "beta_2": 0.25, "epsilon": 1e-2}),
}  # fmt: skip

SCRIPT = """
import json, sys
import numpy as np
import tensorflow as tf
from tensorflow.keras.optimizers import SGD, Adam, RMSprop  # before Horovod, as scripts do
import horovod
import tensorflow_addons as tfa
from tensorflow_addons.optimizers import LAMB

cases, rates = json.loads(sys.argv[1]), json.loads(sys.argv[2])
tf.keras.backend.set_floatx("float64")

def model():
    made = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(3)])
    made.set_weights([np.arange(6.0).reshape(2, 3) - 2, np.zeros(3)])  # a norm of 0, too
    return made

def gradients(step):
    return [np.cos(np.arange(6.0) + step).reshape(2, 3), np.sin(np.arange(3.0) * step)]

def train(optimizer, rates):
    made = model()
    for step, rate in enumerate(rates):
        optimizer.learning_rate = rate
        optimizer.apply_gradients(zip(map(tf.constant, gradients(step)), made.trainable_variables))
    return [weight.tolist() for weight in made.get_weights()]

found = {"keras": Adam.__module__.partition(".")[0], "optimizers": {}, "errors": []}
found["same"] = LAMB is tfa.optimizers.LAMB
for name, (kind, options) in cases.items():
    optimizer = getattr(tfa.optimizers, kind)(**options)
    copy = type(optimizer).from_config(optimizer.get_config())
    found["optimizers"][name] = [train(optimizer, rates), train(copy, rates)]
found["rates"] = [float(kind(lr=0.25).learning_rate) for kind in (Adam, SGD, RMSprop, tfa.optimizers.NovoGrad)]
decayed = SGD(lr=1.0, decay=0.5)
found["decayed"] = [train(kind, [1.0] * 3) for kind in (decayed, SGD.from_config(decayed.get_config()))]
found["undecayed"] = float(decayed.learning_rate)  # callbacks read and set the rate without its decay
made = model()
made.compile(LAMB(lr=0.5), "mse", metrics=["accuracy"], experimental_run_tf_function=False)

def batches():
    while True:
        yield np.ones((4, 2)), np.ones((4, 3))

stop = tf.keras.callbacks.EarlyStopping(monitor="val_acc", patience=1)
history = made.fit_generator(
    batches(), 2, 5, verbose=0, callbacks=[stop], validation_data=batches(), validation_steps=1, workers=1
)
found["epochs"], found["names"] = len(history.history["acc"]), sorted(history.history)
found["old"] = history.history["val_acc"] == history.history["val_accuracy"]
found["predicted"] = list(made.predict_generator(batches(), 1).shape)
for statement in (
    "tfa.layers", "import tensorflow_addons.layers", "from tensorflow_addons import losses",
    "from tensorflow_addons.optimizers import Lookahead", "tfa.optimizers.LazyAdam",
):
    try:
        exec(statement)
    except (ImportError, AttributeError) as error:
        found["errors"].append(str(error))
print("\\n" + json.dumps(found))
"""


def run(keras: str, folder: Path) -> tuple[dict[str, Any], str]:
    """Run the script with one Keras; return its findings and what it wrote to stderr.

    With Keras 3, a tensorflow_addons is installed that cannot be imported, as with today's TensorFlow.
    """
    broken = folder / "site" / "tensorflow_addons"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("import tensorflow_addons.part\nraise AttributeError('tf.no_longer_there')")
    (broken / "part.py").write_text("")
    path = [str(alias.FOLDER), str(legacy_keras.FOLDER), *([str(broken.parent)] if keras == "keras" else [])]
    environ = {
        **os.environ, "PYTHONPATH": os.pathsep.join(path), "RUEDA_LEGACY_KERAS": "1", "KERAS_BACKEND": "tensorflow",
        "TF_USE_LEGACY_KERAS": "1" if keras == "tf_keras" else "0",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, json.dumps(CASES), json.dumps(RATES)],
        env=environ, text=True, capture_output=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.fixture(scope="module", params=["tf_keras", "keras"])
def findings(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    found, lines = run(request.param, tmp_path_factory.mktemp(request.param))
    assert found["keras"] == request.param
    return found, lines


def lamb(w: NDArray[Any], gradients: list[NDArray[Any]], name: str, o: dict[str, Any]) -> NDArray[Any]:
    """Compute LAMB in float64 from the paper's formulas, with tensorflow_addons' exclusions."""
    b1, b2, eps = o.get("beta_1", 0.9), o.get("beta_2", 0.999), o.get("epsilon", 1e-6)
    decays = not any(re.search(word, name) for word in o.get("exclude_from_weight_decay", ()))
    excluded = o.get("exclude_from_layer_adaptation") or o.get("exclude_from_weight_decay", ())
    decay = o.get("weight_decay", o.get("weight_decay_rate", 0.0)) if decays else 0.0
    m = v = np.zeros_like(w)
    for t, (rate, g) in enumerate(zip(RATES, gradients, strict=True), 1):
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        u = m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps) + decay * w
        sizes = np.linalg.norm(w), np.linalg.norm(u)
        adapts = not any(re.search(word, name) for word in excluded) and min(sizes) > 0
        w = w - rate * (sizes[0] / sizes[1] if adapts else 1.0) * u
    return w


def novograd(w: NDArray[Any], gradients: list[NDArray[Any]], name: str, o: dict[str, Any]) -> NDArray[Any]:
    """Compute NovoGrad in float64 as tensorflow_addons documents it, with Keras' momentum: the rate is inside."""
    b1, b2, eps = o.get("beta_1", 0.9), o.get("beta_2", 0.999), o.get("epsilon", 1e-7)
    a, v, top = np.zeros_like(w), 0.0, 0.0
    for t, (rate, g) in enumerate(zip(RATES, gradients, strict=True), 1):
        v = (g**2).sum() if t == 1 else b2 * v + (1 - b2) * (g**2).sum()
        top = max(top, v) if o.get("amsgrad") else v
        move = g / (np.sqrt(top) + eps) + o.get("weight_decay", 0.0) * w
        if o.get("grad_averaging") and t > 1:
            move = (1 - b1) * move
        a = b1 * a - rate * move
        w = w + a
    return w


@pytest.mark.parametrize("case", CASES)
def test_optimizers_of_tensorflow_addons(case: str, findings: tuple[dict[str, Any], str]) -> None:
    kind, options = CASES[case]
    starts = {"kernel": np.arange(6.0).reshape(2, 3) - 2, "bias": np.zeros(3)}
    slopes = {
        "kernel": [np.cos(np.arange(6.0) + step).reshape(2, 3) for step in range(STEPS)],
        "bias": [np.sin(np.arange(3.0) * step) for step in range(STEPS)],
    }
    reference = {"LAMB": lamb, "NovoGrad": novograd}[kind]
    for weights in findings[0]["optimizers"][case]:  # the optimizer, and its copy by configuration
        for (name, start), found in zip(starts.items(), weights, strict=True):
            expected = reference(start, slopes[name], name, options)
            assert np.array(found) == pytest.approx(expected, rel=1e-10, abs=1e-10), name


def test_old_arguments(findings: tuple[dict[str, Any], str]) -> None:
    found, lines = findings
    assert found["same"] and found["rates"] == [0.25] * 4
    # The rates of three steps are 1, 1 / 1.5 and 1 / 2.
    expected = -sum(np.cos(np.arange(6.0) + step) / (1 + 0.5 * step) for step in range(3))
    for kernel, _ in found["decayed"]:
        assert np.array(kernel).ravel() == pytest.approx(np.arange(6.0) - 2 + expected, rel=1e-6)
    assert found["undecayed"] == 1.0
    assert found["epochs"] < 5 and found["old"] and found["predicted"] == [4, 3]
    assert found["names"] == ["accuracy", "loss", "val_accuracy", "val_loss"]
    told = [line.removeprefix("rueda: --legacy-keras: ") for line in lines.splitlines() if line.startswith("rueda:")]
    assert len(told) == len(set(told)) and {
        "Adam(lr=0.25) is taken as learning_rate=0.25",
        "SGD(decay=0.5) is taken: the rate of step t is learning_rate / (1 + 0.5 t)",
    } <= set(told)
    if found["keras"] == "keras":
        assert {
            "compile(experimental_run_tf_function=False) has no effect: Keras 3 has one way to run a model",
            "fit_generator is taken as fit",
            "fit_generator(workers) has no effect: give them to a keras.utils.PyDataset",
        } <= set(told)
        assert told[0].startswith("the installed tensorflow_addons cannot be imported (AttributeError)")


def test_other_names_are_one_clear_line(findings: tuple[dict[str, Any], str]) -> None:
    names = ["layers", "layers", "losses", "optimizers.Lookahead", "optimizers.LazyAdam"]
    assert [error.partition(" is gone")[0] for error in findings[0]["errors"]] == [
        f"tensorflow_addons.{name}" for name in names
    ]
