"""Where a user's files are: the base directories of the XDG specification, and the variables that override them."""

from __future__ import annotations

import os
from pathlib import Path


def user_folder(variable: str, base: str, default: str) -> Path:
    """Return the folder that ``variable`` names, else ``rueda`` in the one that ``base`` names, else in a default.

    Args:
        variable: Rueda's own environment variable.
        base: the variable of the XDG specification.
        default: the base in the user's home, if neither variable is set.
    """
    if own := os.environ.get(variable):
        return Path(own)
    given = os.environ.get(base)
    return (Path(given) if given else Path.home() / default) / "rueda"
