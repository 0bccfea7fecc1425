"""Which Keras a script uses: Keras 3 on one of its backends, or tf_keras, and how its tensors reach torch.

The two are separate packages with separate classes. An optimizer or a model tells by its class to which it belongs. A
callback is made before it sees a model; it belongs to the Keras of the optimizers that were wrapped before it, else to
the one that ``tf.keras`` means (``TF_USE_LEGACY_KERAS``), else to tf_keras if the script has imported that.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from rueda.errors import MissingExtra
from rueda.hvd.basics import rank

KERAS, TF_KERAS = "keras", "tf_keras"
Function = Callable[[list[Tensor]], list[Tensor]]
_last: list[str] = []


class MissingKeras(MissingExtra, ImportError):
    """Keras is needed but not installed."""


def family_of(thing: Any) -> str:
    """Return the package that an optimizer or a model belongs to, and remember it.

    >>> family_of(3)
    Traceback (most recent call last):
    ValueError: expected a model or an optimizer of keras or tf_keras, got int; ...
    """
    for base in type(thing).__mro__:
        package = base.__module__.partition(".")[0]
        if package in (KERAS, TF_KERAS):
            _last[:] = [package]
            return package
    raise ValueError(
        f"expected a model or an optimizer of keras or tf_keras, got {type(thing).__name__}; "
        "for a torch optimizer import horovod.torch"
    )


def current_family() -> str:
    """Return the package of the Keras that the script uses."""
    if _last:
        return _last[0]
    if os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true"):
        return TF_KERAS
    return TF_KERAS if TF_KERAS in sys.modules else KERAS


def load(family: str | None = None) -> Any:
    """Import a Keras, by default that of the script, and return it.

    Raises:
        MissingKeras: it is not installed; the message names the pip command.
    """
    family = family or current_family()
    try:
        return importlib.import_module(family)
    except ModuleNotFoundError as error:
        missing = (error.name or family).partition(".")[0]
        raise MissingKeras(missing, "tensorflow" if missing in ("tensorflow", TF_KERAS) else "keras") from None


def backend_of(family: str) -> str:
    """Return the backend that computes: ``tensorflow``, ``torch`` or ``jax``."""
    return "tensorflow" if family == TF_KERAS else str(load(KERAS).backend.backend())


def as_numpy(variable: Any) -> Any:
    """Return the value of a variable as a NumPy array."""
    return load(KERAS).ops.convert_to_numpy(variable) if hasattr(variable, "path") else variable.numpy()


def keep_out_of_xla(model_class: Any) -> None:
    """Let ``compile`` of a model class turn XLA off for a distributed optimizer: it cannot call the host.

    Keras 3 turns it on by itself for TensorFlow on a GPU. Rank 0 prints a line about it.
    """
    # Keras compares this method with that of the class that defines it, to know whether a user has replaced it.
    owner = next(base for base in model_class.__mro__ if "compile" in vars(base))
    plain = owner.compile
    if hasattr(plain, "_rueda_hvd"):
        return

    @functools.wraps(plain)
    def compiled(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = plain(self, *args, **kwargs)
        options = getattr(getattr(self, "optimizer", None), "_hvd", None)
        if options is not None and self.jit_compile and not options.exchange.alone:
            self.jit_compile = False
            if rank() == 0:
                print(
                    "rueda: jit_compile is off for this model, since XLA cannot call the gradients' exchange; "
                    "give jit_compile=False to compile()",
                    file=sys.stderr,
                )
        return result

    compiled._rueda_hvd = True  # type: ignore[attr-defined]
    owner.compile = compiled


def host_call(family: str, function: Function, tensors: Sequence[Any], like: Sequence[Any]) -> list[Any]:
    """Call a function of torch tensors with tensors of the backend, now or, in a compiled function, at every run.

    Args:
        family: the Keras whose tensors they are.
        function: from torch tensors to torch tensors.
        tensors: its arguments, native tensors of the backend.
        like: tensors or specs with the shapes and types of the results.
    """
    backend = backend_of(family)
    if backend == "torch":
        return function([tensor.detach() for tensor in tensors])
    bridge = importlib.import_module(f"rueda.hvd.bridge.{backend}")
    results: list[Any] = bridge.host_call(function, tensors, like)
    return results
