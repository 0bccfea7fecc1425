"""Keeps rows that were trained with different versions of a user's task file out of one table.

Every run records the checksum of its task file (:class:`rueda.records.task_file.TaskFile`), and so does ``study.json``.
Only the file itself is compared, not what it imports; built-in tasks have no file.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from rueda.errors import RunError
from rueda.records import Run
from rueda.records.task_file import TaskFile

if TYPE_CHECKING:
    from rueda.tasks import Task


def refuse_changed_file(task: Task | str, checksum: str | None) -> None:
    """Refuse to start a run if the task file has changed since the study was planned."""
    if checksum is not None and isinstance(task, str) and TaskFile.read(Path(task)).sha256 != checksum:
        raise RunError(f"{task} was changed while the study ran; put the old file back, or choose another --folder")


def refuse_mixture(root: Path, rows: Iterable[str], task: Task | str, checksum: str | None) -> None:
    """Refuse to continue a study some of whose rows were trained with another version of the task file.

    Args:
        root: the folder of the study.
        rows: rows that ``study.json`` already attributes to another version; rows whose runs record one are added.
        task: the task as the user named it.
        checksum: the checksum of the file as it is now; None for a built-in task.
    """
    if checksum is None:
        return
    older = set(rows)
    for folder in (root / "runs").glob("*-seed*"):
        if _recorded_checksum(folder) not in (None, checksum):
            older.add(folder.name.rpartition("-seed")[0])
    if older:
        raise RunError(
            f"{task} has changed since these rows were trained in {root}: {', '.join(sorted(older))}; "
            "choose another --folder, or put the old file back"
        )


def _recorded_checksum(folder: Path) -> str | None:
    """Read the checksum that a run recorded; None if it has not begun, or belongs to a built-in task."""
    try:
        file = Run(folder).task_file()
    except RunError:
        return None
    return None if file is None else file.sha256
