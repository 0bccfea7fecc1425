"""From what a user typed to a task: a built-in name, or the path of a Python file that defines ``task``."""

from __future__ import annotations

import difflib
import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

from rueda.errors import RuedaError, TaskError
from rueda.tasks.builtin import BUILTIN
from rueda.tasks.task import Task


def load_task(name: str) -> Task:
    """Give the built-in task of this name, or the ``task`` that a Python file defines.

    >>> load_task("linear").name
    'linear'
    >>> load_task("fashion-mnist")
    Traceback (most recent call last):
    rueda.errors.TaskError: task: expected a built-in name (...) or a Python file, got 'fashion-mnist'; did you ...
    """
    if name in BUILTIN:
        return BUILTIN[name]()
    file = task_file(name)
    if file is not None:
        return _from_file(file)
    close = difflib.get_close_matches(name, BUILTIN, 1, cutoff=0.4)
    raise TaskError(
        "task",
        expected=f"a built-in name ({', '.join(BUILTIN)}) or a Python file",
        got=name,
        do=f"did you mean {close[0]}?" if close else "choose one",
    )


def load_task_and_data(task: Task | str) -> Task:
    """Load a task, if it is given by name or file, and read its training and test data into memory once."""
    found = load_task(task) if isinstance(task, str) else task
    return replace(found, train=found.load("train"), test=found.load("test"))


def task_file(name: str) -> Path | None:
    """Give the file that a task is loaded from; None for a built-in one.

    >>> task_file("linear"), task_file("mine.py")
    (None, PosixPath('mine.py'))
    """
    file = Path(name)
    return file if name not in BUILTIN and (file.suffix == ".py" or file.exists()) else None


def _from_file(file: Path) -> Task:
    if not file.is_file():
        raise TaskError("task", expected="a Python file that exists", got=str(file), do="check the path")
    spec = importlib.util.spec_from_file_location(f"rueda_task_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise TaskError("task", expected="a Python file", got=str(file), do="give it the suffix .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickling inside it look it up
    sys.path.insert(0, str(file.parent.resolve()))  # as python itself does for a script
    try:
        spec.loader.exec_module(module)
    except RuedaError:
        raise
    except Exception as error:
        line = _line_in(file, error)
        raise TaskError(
            f"{file}{line} raised {type(error).__name__}: {error}; the task file must run by itself"
        ) from error
    task = getattr(module, "task", None)
    if not isinstance(task, Task):
        raise TaskError(
            str(file),
            expected="a name `task` that is a rueda.Task",
            got=type(task).__name__,
            do="add `task = rueda.Task(...)`",
        )
    return task


def _line_in(file: Path, error: Exception) -> str:
    traceback = error.__traceback__
    line = ""
    while traceback is not None:
        if Path(traceback.tb_frame.f_code.co_filename) == file.resolve():
            line = f", line {traceback.tb_lineno},"
        traceback = traceback.tb_next
    return line
