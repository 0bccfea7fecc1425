"""Relative paths refer to the directory where the user typed them, even after a task file calls ``os.chdir``."""

from __future__ import annotations

from pathlib import Path


def located(path: Path, directory: Path) -> Path:
    """Return ``path``, relative to ``directory``; prefixed only if that is no longer the current directory.

    >>> located(Path("runs/a"), Path.cwd()), located(Path("runs/a"), Path("/other"))
    (PosixPath('runs/a'), PosixPath('/other/runs/a'))
    """
    return path if Path.cwd() == directory else directory / path
