"""Which state of a user's task file a run was trained with: rows of two states must not stand in one table.

A checksum of the file lies beside the run's recipe (``task.json``) and in ``study.json``. Only the file itself counts,
not what it imports; built-in tasks have none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from rueda.errors import RunError, TaskError
from rueda.files.atomic import write_atomically

if TYPE_CHECKING:
    from rueda.tasks import Task

_RECORD = "task.json"


def checksum_of(task: Task | str) -> str | None:
    """Give the SHA-256 of a task's file; None for a built-in task and for one that exists in no file."""
    if not isinstance(task, str):
        return None
    from rueda.tasks.loading import task_file

    file = task_file(task)
    return None if file is None else _digest(file)


def _digest(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise TaskError(f"cannot read {file}: {error.strerror}; check the path") from None


def sign(folder: Path, task: Task | str, checksum: str | None) -> None:
    """Write beside a run's recipe which state of the file it is trained with; refuse one that has changed meanwhile."""
    if checksum is None:
        return
    if _digest(Path(str(task))) != checksum:
        raise RunError(f"{task} was changed while the study ran; put the old file back, or choose another --folder")
    write_atomically(folder / _RECORD, json.dumps({"sha256": checksum}).encode())


def signature(folder: Path) -> str | None:
    """Read what :func:`sign` wrote; None if there is nothing, as in runs of an older Rueda."""
    try:
        found = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
        return str(found["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def refuse_mixture(root: Path, rows: Iterable[str], task: Task | str, checksum: str | None) -> None:
    """Refuse to go on in a study's folder of which some rows are of another state of the file.

    Args:
        root: the study's folder.
        rows: those that are known to be of another state; what the runs say is added.
        task: as the user gave it.
        checksum: of the file as it is.
    """
    if checksum is None:
        return
    older = set(rows)
    for folder in (root / "runs").glob("*-seed*"):
        if signature(folder) not in (None, checksum):
            older.add(folder.name.rpartition("-seed")[0])
    if older:
        raise RunError(
            f"{task} has changed since these rows were trained in {root}: {', '.join(sorted(older))}; "
            "choose another --folder, or put the old file back"
        )
