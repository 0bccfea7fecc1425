"""Objects as text, for environment variables and command lines, as ``horovod.runner.common.util.codec``."""

from __future__ import annotations

import base64
import pickle
from typing import Any

from rueda.hvd.pickled import dumps


def dumps_base64(obj: Any, to_ascii: bool = True) -> str | bytes:
    """Pickle an object and encode it in base64.

    >>> loads_base64(dumps_base64({"rate": 0.1}))
    {'rate': 0.1}
    """
    encoded = base64.b64encode(dumps(obj))
    return encoded.decode("ascii") if to_ascii else encoded


def loads_base64(encoded: str | bytes) -> Any:
    """Decode what :func:`dumps_base64` returned; a pickle can run code, so the text must come from a trusted source."""
    return pickle.loads(base64.b64decode(encoded))
