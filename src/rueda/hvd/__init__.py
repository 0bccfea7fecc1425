"""Horovod's interface on ``torch.distributed``: its scripts run as they are.

==================  =====================================================================================
``hvd.torch``       ``import rueda.hvd.torch as hvd``: what ``horovod.torch`` offers
``hvd.run``         a Python function on N workers, its results in rank order (:mod:`rueda.hvd.runner`)
``hvd.install``     the name ``horovod`` for this package (:mod:`rueda.hvd.alias`)
``hvd.names``       every name of Horovod: the same, better, not yet, or gone and what to use instead
``hvd.core``        names, negotiation, fusion, join, process sets: knows tensors and numbers, no framework
==================  =====================================================================================

Importing the package loads no torch; a name does, when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rueda.hvd.version import __version__

if TYPE_CHECKING:
    from rueda.hvd.alias import install
    from rueda.hvd.runner import run

__all__ = ["__version__", "install", "run"]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in ("install", "run"):
        value = getattr(import_module("rueda.hvd.alias" if name == "install" else "rueda.hvd.runner"), name)
        globals()[name] = value  # found once, it is found at once
        return value
    from rueda.hvd.names import no_attribute

    raise no_attribute("horovod", name)


def __dir__() -> list[str]:
    return [*__all__, "torch", "runner", "common"]
