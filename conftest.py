"""Leaves out what needs frameworks that are not installed, such as TensorFlow; ``make test-keras`` has them."""

from __future__ import annotations

import os
from importlib.util import find_spec

_NEEDS = {
    "tensorflow": [
        "tests/frameworks",
        "src/rueda/hvd/bridge/tensorflow.py",
        "src/rueda/hvd/tensorflow",
        "src/rueda/hvd/keras",
        "src/rueda/keras",
    ],
    "lightning": ["src/rueda/integrations/lightning.py"],
    "transformers": ["src/rueda/integrations/transformers.py"],
    "jax": ["src/rueda/hvd/bridge/jax.py", "src/rueda/hvd/jax"],
}
collect_ignore = ["src/rueda/hvd/legacy_keras/shim"]  # a package with a name of its own, not part of ours
# Scripts that train when they are imported.
collect_ignore += ["tests/check/gallery", "tests/frameworks/gallery", "tests/scale/scripts", "tests/assess/submissions"]
collect_ignore += [path for module, paths in _NEEDS.items() if find_spec(module) is None for path in paths]
if find_spec("tensorflow") is None:
    os.environ.setdefault("KERAS_BACKEND", "torch")  # Keras would want TensorFlow
