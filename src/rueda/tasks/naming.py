"""From a task's name, which may be any text, to the name of a folder that stays where it is put."""

from __future__ import annotations

import re

_LONGEST = 80


def folder_name(name: str) -> str:
    """Give a task's name as one part of a path: letters, digits and ``._+-``; all else becomes a hyphen.

    >>> folder_name("glyphs-cnn"), folder_name("../../etc/[bold]x"), folder_name("..")
    ('glyphs-cnn', 'etc-bold-x', 'task')
    """
    safe = re.sub(r"[^\w.+-]+", "-", name)
    safe = re.sub(r"(?:^|(?<=-))\.+-", "", safe)  # the remains of ../
    return safe.lstrip(".-")[:_LONGEST].rstrip(".-") or "task"
