"""The folder for files that can be computed or downloaded again."""

from __future__ import annotations

from pathlib import Path

from rueda.files.user_folder import user_folder


def cache_folder() -> Path:
    """Return the cache folder: ``RUEDA_CACHE``, else ``rueda`` in ``XDG_CACHE_HOME``, else ``~/.cache/rueda``."""
    return user_folder("RUEDA_CACHE", "XDG_CACHE_HOME", ".cache")
