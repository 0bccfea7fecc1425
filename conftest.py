"""Leaves out what needs frameworks that are not installed, such as TensorFlow; ``make test-keras`` has them."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

_NEEDS = {
    "marimo": ["tests/frameworks/labs"],
    "tensorflow": [
        "tests/frameworks",
        "tests/assess/test_submissions.py",  # it needs none of them, but two minutes
        "tests/report/test_browser.py",  # nor does this one, but two minutes, too
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
collect_ignore += ["tests/startup"]  # Python itself imports it, when a process of the tests starts
# Scripts that train when they are imported.
collect_ignore += ["src/rueda/labs/notebooks"]  # marimo runs them
collect_ignore += ["tests/check/gallery", "tests/frameworks/gallery", "tests/scale/scripts", "tests/assess/submissions"]
collect_ignore += [path for module, paths in _NEEDS.items() if find_spec(module) is None for path in paths]
if os.environ.get("RUEDA_TEST_LABS") and "tests/frameworks" in collect_ignore:  # whole labs, also without TensorFlow
    collect_ignore.remove("tests/frameworks")
    collect_ignore += [
        str(path) for path in Path(__file__).with_name("tests").glob("frameworks/*") if path.stem != "labs"
    ]
if find_spec("tensorflow") is None:
    os.environ.setdefault("KERAS_BACKEND", "torch")  # Keras would want TensorFlow
