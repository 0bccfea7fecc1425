"""``--legacy-keras``: scripts that were written for Keras 2 and tensorflow_addons run with today's TensorFlow.

The option of ``rueda run``, ``rueda horovodrun`` and ``python -m rueda.hvd`` does three things:

========================  ========================================================================================
``tf.keras``              is ``tf_keras``, Keras 2, if it is installed (``TF_USE_LEGACY_KERAS=1``), else Keras 3
``tensorflow_addons``     has LAMB and NovoGrad with its own formulas, signatures and defaults
                          (:mod:`rueda.hvd.legacy_keras.addons`); a genuine one that can be imported keeps its name
arguments of Keras 2      ``lr=`` and ``decay=`` of optimizers, ``experimental_run_tf_function``, ``fit_generator`` ...
                          are taken, each with one line from rank 0 (:mod:`rueda.hvd.legacy_keras.old_arguments`)
========================  ========================================================================================

The name ``tensorflow_addons`` reaches the workers as ``horovod`` does (:mod:`rueda.hvd.alias`): by a folder on their
``PYTHONPATH``. Old arguments are taken from the first ``import horovod`` or ``import tensorflow_addons`` on, also by
classes that the script has imported before. Importing this package imports neither TensorFlow nor Keras.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "RUEDA_LEGACY_KERAS"
PACKAGE = "rueda.hvd.legacy_keras.shim"
FOLDER = Path(__file__).parent / "shim"

_told: set[str] = set()


def is_wanted() -> bool:
    """Return whether this process runs with ``--legacy-keras``."""
    return os.environ.get(VARIABLE) == "1"


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which ``--legacy-keras`` reaches a worker.

    A ``TF_USE_LEGACY_KERAS`` that is already set is kept: 0 asks for Keras 3 although ``tf_keras`` is installed.

    >>> variables({"TF_USE_LEGACY_KERAS": "0"})
    {'RUEDA_LEGACY_KERAS': '1'}
    """
    found = {VARIABLE: "1"}
    if "TF_USE_LEGACY_KERAS" not in environ and importlib.util.find_spec("tf_keras") is not None:
        found["TF_USE_LEGACY_KERAS"] = "1"
    return found


def enter() -> None:
    """Turn ``--legacy-keras`` on in this process, before it imports TensorFlow: for ``python -m rueda.hvd``."""
    os.environ.update(variables(os.environ))
    sys.path.insert(1, str(FOLDER))
    install()


def install() -> None:
    """Take old arguments from now on, in the Keras that is imported already and in one that will be."""
    from rueda.hvd.legacy_keras.old_arguments import patch_on_import

    patch_on_import()


def note(text: str) -> None:
    """Print one line on rank 0; the same line is printed once."""
    from rueda.world.identity import identify

    if text not in _told and identify(os.environ).rank == 0:
        print(f"rueda: --legacy-keras: {text}", file=sys.stderr, flush=True)
    _told.add(text)
