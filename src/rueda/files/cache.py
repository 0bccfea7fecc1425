"""The folder for files that can be computed or downloaded again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the cache folder: ``RUEDA_CACHE``, else ``rueda`` in ``XDG_CACHE_HOME``, else ``~/.cache/rueda``."""
    if os.environ.get("RUEDA_CACHE"):
        return Path(os.environ["RUEDA_CACHE"])
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "rueda"
