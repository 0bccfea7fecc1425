"""The import of Keras for all modules of this package; if it is missing, a one-line error says how to install it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from rueda.errors import MissingExtra, RuedaError


def find_keras() -> Any:
    """Import Keras 3; an error says what is missing: Keras, or the framework that it would run on."""
    try:
        found: Any = import_module("keras")
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        if missing in ("tensorflow", "jax"):
            raise _without_backend(missing) from None
        raise MissingExtra("keras", "keras") from None
    if not found.__version__.startswith("3."):
        do = "run `pip install 'rueda[keras]'`"
        raise RuedaError("keras", expected="Keras 3", got=found.__version__, do=do)
    return found


def _without_backend(framework: str) -> RuedaError:
    return RuedaError(
        "Keras's backend",
        expected="an installed framework",
        got=framework,
        do=f"set KERAS_BACKEND=torch before Keras is imported, or run `pip install 'rueda[{framework}]'`",
    )


keras = find_keras()


def precise(dtype: Any) -> str:
    """Return the precision to compute in: float64 for float64, float32 for all others.

    ``keras.backend.result_type`` turns float64 into float32 on torch and JAX, and so do operations of two tensors in
    ``keras.ops``, such as ``maximum``; operators and ``where`` keep it.
    """
    return "float64" if keras.backend.standardize_dtype(dtype) == "float64" else "float32"
