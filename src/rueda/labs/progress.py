"""Which questions and exercises a learner has answered, kept in the user's state folder.

Each item has a file of its own, which is written atomically: two labs that are open at once lose nothing.

>>> import os, tempfile
>>> os.environ["RUEDA_STATE"] = tempfile.mkdtemp()
>>> note("1.updates", right=False), note("1.updates", right=True), note("1.updates", right=False)
(1, 2, 3)
>>> answered(1)
{'1.updates'}
>>> del os.environ["RUEDA_STATE"]
"""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rueda.errors import RunError
from rueda.files.atomic import write_atomically
from rueda.files.state import state_folder


def note(key: str, *, right: bool) -> int:
    """Record a try of an item, such as ``1.updates``; return the number of tries so far.

    An item that was answered stays answered. Where the folder cannot be written, the lab goes on without a record.
    """
    file = _file(key)
    before = _read(file)
    tries = int(before.get("tries", 0)) + 1
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    when = before.get("answered") or (now if right else None)
    record = {"key": key, "tries": tries, "answered": when, "last": now}
    try:
        write_atomically(file, json.dumps(record).encode())
    except RunError:
        return tries
    return tries


def answered(lab: int) -> set[str]:
    """Return the keys of the items of a lab that were answered."""
    found = (_read(file) for file in sorted((state_folder() / "labs").glob(f"{lab}.*.json")))
    return {str(record["key"]) for record in found if record.get("answered")}


def mark(key: str) -> str:
    """Return what a lab shows below an item that was answered on an earlier visit; otherwise nothing."""
    return "✓ You have answered this before." if _read(_file(key)).get("answered") else ""


def forget(lab: int) -> None:
    """Remove the record of a lab."""
    for file in (state_folder() / "labs").glob(f"{lab}.*.json"):
        file.unlink(missing_ok=True)


def _file(key: str) -> Path:
    return state_folder() / "labs" / f"{key}.json"


def _read(file: Path) -> dict[str, Any]:
    try:
        found: Any = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
