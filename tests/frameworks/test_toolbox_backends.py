"""Run the tests of ``rueda.keras`` on the Keras backends that this process does not have: a process has only one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest

HERE = Path(__file__).parent
FILES = [str(file) for file in sorted(HERE.glob("test_toolbox_*.py")) if file.name != Path(__file__).name]


@pytest.mark.parametrize("backend", ["tensorflow", "torch", "jax"])
def test_the_toolbox_on(backend: str) -> None:
    if backend == keras.backend.backend() and backend != "jax":
        pytest.skip("this process has it")
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *FILES]
    options = {"KERAS_BACKEND": backend, "JAX_ENABLE_X64": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}  # xdist's, too
    done = subprocess.run(
        words, cwd=HERE.parents[1], env={**kept, **options}, text=True, capture_output=True, timeout=600
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_importing_the_toolbox_does_not_import_torch() -> None:
    code = "import rueda.keras, sys; print(sorted({'tensorflow', 'torch'} & sys.modules.keys()))"
    environment = {**os.environ, "KERAS_BACKEND": "jax"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, text=True, capture_output=True, timeout=120)
    assert done.stdout == "[]\n", done.stderr
