"""The folder for what a user has done, which cannot be computed again."""

from __future__ import annotations

import os
from pathlib import Path


def state_folder() -> Path:
    """Return the folder: ``RUEDA_STATE``, else ``rueda`` in ``XDG_STATE_HOME``, else ``~/.local/state/rueda``."""
    if os.environ.get("RUEDA_STATE"):
        return Path(os.environ["RUEDA_STATE"])
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "rueda"
