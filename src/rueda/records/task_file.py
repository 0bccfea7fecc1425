"""The Python file that defines a user's task, as a run, a profile or a study records it.

The absolute path lets a later command load the task again without being told where it is. The checksum tells whether
the file is still the one that was used; only the file itself counts, not what it imports. Built-in tasks have no file.
"""

from __future__ import annotations

import hashlib
import shlex
from dataclasses import dataclass
from pathlib import Path

from rueda.errors import TaskError


@dataclass(frozen=True, kw_only=True)
class TaskFile:
    """Where a task file is, and the checksum of its contents when it was used."""

    path: str
    """the absolute path"""
    sha256: str

    @classmethod
    def read(cls, file: Path) -> TaskFile:
        """Compute the checksum of a file.

        Raises:
            TaskError: the file cannot be read.
        """
        try:
            return cls(path=str(file.absolute()), sha256=hashlib.sha256(file.read_bytes()).hexdigest())
        except OSError as error:
            raise TaskError(f"cannot read {file}: {error.strerror}; check the path") from None

    def has_changed(self) -> bool:
        """Tell whether the contents of the file differ from those that were used.

        Raises:
            TaskError: the file cannot be read.
        """
        return TaskFile.read(Path(self.path)) != self

    def argument(self) -> str:
        """Write the path as an argument of a command line, relative where the file lies below the current directory.

        >>> TaskFile(path=str(Path.cwd() / "my tasks" / "spirals.py"), sha256="").argument()
        "'my tasks/spirals.py'"
        >>> TaskFile(path=str(Path.cwd() / "-spirals.py"), sha256="").argument()
        './-spirals.py'
        """
        path, here = Path(self.path), Path.cwd()
        shown = str(path.relative_to(here) if path.is_relative_to(here) else path)
        return shlex.quote(f"./{shown}" if shown.startswith("-") else shown)  # else it would be taken for an option
