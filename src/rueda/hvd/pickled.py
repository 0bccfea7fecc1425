"""Serialisation of Python objects, between workers and between a program and its workers.

Plain pickle stores a function or class by the name of its module and its own name. cloudpickle can store the code
itself, which lambdas, local functions and everything defined in ``__main__`` need. It is optional:
``pip install 'rueda[horovod]'``.
"""

from __future__ import annotations

import pickle

from rueda.errors import MissingExtra


def dumps(value: object, *, by_value: bool = False) -> bytes:
    """Serialise an object; :func:`pickle.loads` reads the result.

    Workers that run the same script can store functions and classes by name, so that a class is the same class on all
    of them. For another program, pass ``by_value`` to store their code, if cloudpickle is installed.

    Raises:
        MissingExtra: only cloudpickle can serialise the object, and it is not installed.
    """
    try:
        import cloudpickle  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError:
        cloudpickle = None
    if cloudpickle is None or not by_value:
        try:
            return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            if not _is_about_code(error):
                raise
            if cloudpickle is None:
                raise MissingExtra("cloudpickle", "horovod") from error
    data: bytes = cloudpickle.dumps(value)
    return data


def _is_about_code(error: Exception) -> bool:
    """Return whether pickle failed on a function or class that has no importable name."""
    return any(words in str(error) for words in ("local object", "lambda", "attribute lookup", "not the same object"))
