"""``rueda measure`` and ``rueda plan`` of a Keras model: against what is known of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("keras")

TASK = """
import keras
import numpy as np
from rueda.tasks import KerasTask

draw = np.random.default_rng(0)
x = draw.normal(size=(4096, 8)).astype("float32")
y = (x @ draw.normal(size=(8,)) + 2 * draw.normal(size=4096)).astype("float32")

def model():
    made = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    made.compile(keras.optimizers.SGD(1e-4), "mse")
    return made

task = KerasTask(name="line", model=model, train=lambda: (x, y), batch=64)
"""

CHECK = """
import sys
from pathlib import Path
import numpy as np
from dataclasses import replace
from rueda.measure import measure
from rueda.measure.request import QUICK
from rueda.measure.keras_model import KerasStepper
from rueda.tasks.loading import load_measurable
from rueda.world import instruction_sets
import torch

task = load_measurable("line.py")
budget = replace(QUICK, steps=0.4, noise=1.0)
profile = measure(task, batches=[16, 64, 256], quick=True, budget=budget)
assert (profile.task, profile.parameters, profile.gradient_bytes, profile.examples) == ("line", 9, 36, 4096), profile
assert [step.batch for step in profile.steps] == [16, 64, 256]
for step in profile.steps:
    parts = (step.data, step.forward, step.backward, step.optimizer)
    assert min(parts) >= 0 and abs(sum(parts) - step.seconds) < 0.5 * step.seconds, step
    assert step.peak_memory_bytes and step.peak_memory_bytes > 1e7
assert 'optimizer = "sgd"' in profile.recipe and "rate = 0.0001" in profile.recipe, profile.recipe

# The gradients of single examples at zero weights, mean G and trace of the covariance S, in closed form.
space = {}
exec(Path("line.py").read_text(), space)
x, y = space["x"].astype(float), space["y"].astype(float)
single = -2 * y[:, None] * np.concatenate([x, np.ones((len(x), 1))], 1)
mean = single.mean(0)
truth = single.var(0).sum() / (mean @ mean)
for noise in profile.noise:  # the rate is so small that the weights hardly move
    assert noise.low < truth < noise.high, (truth, noise)
assert len(profile.noise) == 2 and profile.noise[0].source == "halves"

stepper = KerasStepper(task, torch.device("cpu"))  # gradients of any rows, and nothing is changed in the end
found = np.concatenate([one.ravel() for one in stepper._gradient(np.arange(100))])
assert np.allclose(found, single[:100].mean(0), rtol=1e-4, atol=1e-5)
stepper.block(64, 2, stages=True)
stepper.restore()
assert all((value == start).all() for value, start in zip(stepper._values(), stepper._start))
profile.save(Path("profile.json"))

calls = []  # the model may compute in mixed_bfloat16, so the process is protected before it is built
instruction_sets.protect = lambda: calls.append("protect")
KerasStepper(replace(task, model=lambda: calls.append("build") or task.model()), torch.device("cpu"))
assert calls == ["protect", "build"], calls
"""


@pytest.mark.parametrize("backend", ["tensorflow", "torch", "jax"])
def test_profile_of_a_keras_model(backend: str, tmp_path: Path) -> None:
    (tmp_path / "line.py").write_text(TASK)
    environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONWARNINGS": "ignore"}
    subprocess.run([sys.executable, "-c", CHECK], cwd=tmp_path, env=environment, check=True, timeout=150)

    from commandline import rueda

    recipe = tmp_path / "recipe.toml"
    assert rueda("plan", str(tmp_path / "profile.json"), "--workers", "1", "--recipe-output", str(recipe)) == 0
    assert "batch = " in recipe.read_text()


def test_other_commands_refuse_a_keras_model(tmp_path: Path) -> None:
    from rueda.errors import TaskError
    from rueda.tasks import load_task

    file = tmp_path / "line.py"
    file.write_text("from rueda.tasks import KerasTask\ntask = KerasTask(name='line', model=print, train=(1, 2))\n")
    with pytest.raises(TaskError, match="train it with its own script"):
        load_task(str(file))
