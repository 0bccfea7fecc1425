"""The names of tasks: the built-in ones, and the folder name that is made from any task's name."""

from __future__ import annotations

import re

BUILTIN_TASKS = ("linear", "glyphs-cnn", "fashion-mnist-cnn", "fashion-mnist-wrn", "cifar10-cnn", "cifar10-resnet")
"""the functions of :mod:`rueda.tasks.builtin`, with hyphens; known here without loading torch"""
_LONGEST = 80


def folder_name(name: str) -> str:
    """Return a task's name as a folder name of letters, digits and ``._+-``; other characters become hyphens.

    >>> folder_name("glyphs-cnn"), folder_name("../../etc/[bold]x"), folder_name("..")
    ('glyphs-cnn', 'etc-bold-x', 'task')
    """
    safe = re.sub(r"[^\w.+-]+", "-", name)
    safe = re.sub(r"(?:^|(?<=-))\.+-", "", safe)  # the remains of ../
    return safe.lstrip(".-")[:_LONGEST].rstrip(".-") or "task"
