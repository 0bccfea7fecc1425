"""Relative paths mean the directory in which the user typed them, also after a task file has called ``os.chdir``."""

from __future__ import annotations

from pathlib import Path


def located(path: Path, directory: Path) -> Path:
    """Give a path as it was typed in ``directory``; below that, if this process has left it.

    >>> located(Path("runs/a"), Path.cwd()), located(Path("runs/a"), Path("/other"))
    (PosixPath('runs/a'), PosixPath('/other/runs/a'))
    """
    return path if Path.cwd() == directory else directory / path
