"""Horovod's interface on ``torch.distributed``: scripts that were written for Horovod run unmodified.

==================  =====================================================================================
``hvd.torch``       ``import rueda.hvd.torch as hvd``: the interface of ``horovod.torch``
``hvd.tensorflow``  ``import rueda.hvd.tensorflow as hvd``: the interface of ``horovod.tensorflow``
``hvd.keras``       ``import rueda.hvd.keras as hvd``: the interface of ``horovod.keras``, for Keras 3 and tf_keras
``hvd.run``         runs a Python function on N workers and returns its results (:mod:`rueda.hvd.runner`)
``hvd.install``     makes ``import horovod`` import this package (:mod:`rueda.hvd.alias`)
``hvd.names``       lists every public name of Horovod, and says whether Rueda has it or what replaces it
``hvd.core``        matches collectives by name and runs them: negotiation, fusion, join, process sets
==================  =====================================================================================

Importing this package does not import torch; its names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rueda.hvd.version import __version__
from rueda.lazy import lazily

if TYPE_CHECKING:
    from rueda.hvd.alias import install
    from rueda.hvd.runner import run

__all__ = ["__version__", "install", "run"]
_find = lazily(__name__, {"install": "alias", "run": "runner"})


def __getattr__(name: str) -> Any:
    if name in __all__:
        return _find(name)
    from rueda.hvd.names import no_attribute

    raise no_attribute("horovod", name)


def __dir__() -> list[str]:
    return [*__all__, "torch", "tensorflow", "keras", "runner", "common"]
