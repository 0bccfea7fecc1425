"""Objects as bytes, between workers and between a program and its workers.

Plain pickle names functions and classes by their module; cloudpickle can also take the code itself along, which a
lambda, a local function, and everything that stands in ``__main__`` need. It is optional:
``pip install 'rueda[horovod]'``.
"""

from __future__ import annotations

import pickle
from typing import Any

from rueda.errors import MissingExtra


def dumps(value: object, *, by_value: bool = False) -> bytes:
    """Encode an object; :func:`pickle.loads` reads it.

    Among workers that run the same script names suffice, and a class then is the same class on all of them. For what
    leaves its program (``by_value``) the code goes along, if cloudpickle is there.

    Raises:
        MissingExtra: only cloudpickle could encode it, and it is not installed.
    """
    try:
        import cloudpickle  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError:
        cloudpickle = None
    if by_value and cloudpickle is not None:
        return _with(cloudpickle, value)
    try:
        return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        if not _is_about_code(error):
            raise
        if cloudpickle is None:
            raise MissingExtra("cloudpickle", "horovod") from error
        return _with(cloudpickle, value)


def _with(cloudpickle: Any, value: object) -> bytes:
    data: bytes = cloudpickle.dumps(value)
    return data


def _is_about_code(error: Exception) -> bool:
    """Say whether pickle failed on a function or class without a name, rather than on a lock or a socket."""
    return any(words in str(error) for words in ("local object", "lambda", "attribute lookup", "not the same object"))
