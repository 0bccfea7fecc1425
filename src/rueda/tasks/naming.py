"""The names of tasks: the built-in ones, and the folder name that is made from any task's name."""

from __future__ import annotations

import re

BUILTIN_TASKS = (
    "linear",
    "glyphs-cnn",
    "glyphs-vit",
    "glyphs-pairs",
    "fashion-mnist-cnn",
    "fashion-mnist-wrn",
    "cifar10-cnn",
    "cifar10-resnet",
    "text-transformer",
    "bytes-classifier",
    "table-classes",
    "table-regression",
)
"""the functions of :mod:`rueda.tasks.builtin`, with hyphens; known here without loading torch"""
TAKES_A_FILE = ("text-transformer",)
"""the built-in tasks that can be trained on a file: ``text-transformer:book.txt``"""
_LONGEST = 80


def split_file(name: str) -> tuple[str, str | None]:
    """Split the name of a task and a file for it; the file is None where there is none.

    >>> split_file("text-transformer:book.txt"), split_file("text-transformer"), split_file("C:task.py")
    (('text-transformer', 'book.txt'), ('text-transformer', None), ('C:task.py', None))
    """
    task, colon, file = name.partition(":")
    return (task, file) if colon and task in TAKES_A_FILE else (name, None)


def folder_name(name: str) -> str:
    """Return a task's name as a folder name of letters, digits and ``._+-``; other characters become hyphens.

    >>> folder_name("glyphs-cnn"), folder_name("../../etc/[bold]x"), folder_name("..")
    ('glyphs-cnn', 'etc-bold-x', 'task')
    """
    safe = re.sub(r"[^\w.+-]+", "-", name)
    safe = re.sub(r"(?:^|(?<=-))\.+-", "", safe)  # the remains of ../
    return safe.lstrip(".-")[:_LONGEST].rstrip(".-") or "task"
