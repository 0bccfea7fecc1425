"""What ``shim/tensorflow_addons`` does when it is imported: give way to a genuine package, or stand for it."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from rueda.hvd.legacy_keras import FOLDER, install, note

NAME = "tensorflow_addons"
_OPTIMIZERS = f"{NAME}.optimizers"


def import_genuine() -> bool:
    """Import an installed tensorflow_addons in place of the module that is being imported; False if it cannot be."""
    own = os.path.realpath(FOLDER)
    spec = PathFinder.find_spec(NAME, [entry for entry in sys.path if os.path.realpath(entry or ".") != own])
    if spec is None or spec.origin is None or spec.loader is None:
        return False
    module, shim = importlib.util.module_from_spec(spec), sys.modules[NAME]
    sys.modules[NAME] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # it fails at names that TensorFlow and Keras no longer have, in several ways
        for name in [name for name in sys.modules if name == NAME or name.startswith(f"{NAME}.")]:
            del sys.modules[name]
        sys.modules[NAME] = shim
        note(f"the installed {NAME} cannot be imported ({type(error).__name__}); Rueda's LAMB and NovoGrad are used")
        return False
    return True


def prepare() -> None:
    """Take the old arguments of Keras, import the optimizers, and explain modules that are not here."""
    install()
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    importlib.import_module(_OPTIMIZERS)  # so that tensorflow_addons.optimizers exists


def explanation(name: str) -> str:
    """Explain that a name of tensorflow_addons is missing, and which names there are.

    >>> explanation("layers")
    'tensorflow_addons.layers is gone with TensorFlow 2.16; --legacy-keras has only optimizers.LAMB and .NovoGrad'
    """
    return f"{NAME}.{name} is gone with TensorFlow 2.16; --legacy-keras has only optimizers.LAMB and .NovoGrad"


def no_attribute(name: str) -> AttributeError:
    """Return the error for an attribute; Python's own questions, such as ``__path__``, get its own answer."""
    last = name.rpartition(".")[2]
    return AttributeError(f"no attribute {name!r}" if last.startswith("__") else explanation(name), name=last)


class _Finder(MetaPathFinder):
    """Says in one line that a submodule of tensorflow_addons does not exist."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raise ModuleNotFoundError for submodules other than ``optimizers``; return None for other modules."""
        if fullname.startswith(f"{NAME}.") and fullname != _OPTIMIZERS:
            # Within `from`, Python hides an error that carries the name that it looked for: this one carries another.
            raise ModuleNotFoundError(explanation(fullname.removeprefix(f"{NAME}.")), name=NAME)
        return None
