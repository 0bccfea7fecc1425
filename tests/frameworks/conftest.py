"""Tests that need TensorFlow, Keras or JAX: ``make test-keras`` runs them, in an environment that has them.

Their bodies run on workers as those of other tests: ``@workers(2, framework="tensorflow")`` of tests/harness.py.
"""

from __future__ import annotations

import os

from harness import ONE_THREAD

os.environ.update(ONE_THREAD)  # before TensorFlow and JAX are loaded
