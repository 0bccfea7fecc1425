"""The folder for what a user has done, which cannot be computed again."""

from __future__ import annotations

from pathlib import Path

from rueda.files.user_folder import user_folder


def state_folder() -> Path:
    """Return the folder: ``RUEDA_STATE``, else ``rueda`` in ``XDG_STATE_HOME``, else ``~/.local/state/rueda``."""
    return user_folder("RUEDA_STATE", "XDG_STATE_HOME", ".local/state")
