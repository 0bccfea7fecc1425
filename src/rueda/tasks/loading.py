"""Load a task by its built-in name, or from a Python file that defines ``task``."""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from dataclasses import replace
from pathlib import Path

from rueda.errors import RuedaError, TaskError, suggest
from rueda.records.task_file import TaskFile
from rueda.tasks import builtin
from rueda.tasks.half_precision import protect_before_loading
from rueda.tasks.keras_task import KerasTask
from rueda.tasks.naming import BUILTIN_TASKS, split_file
from rueda.tasks.splits import split_off
from rueda.tasks.task import Task


def load_task(name: str) -> Task:
    """Return the built-in task of this name, or the ``task`` that a Python file defines.

    >>> load_task("linear").name
    'linear'
    >>> load_task("fashion-mnist")
    Traceback (most recent call last):
    rueda.errors.TaskError: task: expected a built-in name (...) or a Python file, got 'fashion-mnist'; did you ...
    """
    task = load_measurable(name)
    if isinstance(task, KerasTask):
        do = "measure and plan it; train it with its own script, under `rueda run`"
        raise TaskError(name, expected="a name `task` that is a rueda.Task", got="a KerasTask", do=do)
    return task


def load_measurable(name: str) -> Task | KerasTask:
    """Return a task as :func:`load_task` does, or a Keras model with its data, which can be measured."""
    builtin_name, data_file = split_file(name)
    if builtin_name in BUILTIN_TASKS:
        make = getattr(builtin, builtin_name.replace("-", "_"))
        made: Task = make() if data_file is None else make(data_file)
        return made
    file = task_file(name)
    if file is not None:
        protect_before_loading(name)
        return _from_file(file)
    known = [*BUILTIN_TASKS, *([f"{name}.py"] if os.path.isfile(f"{name}.py") else [])]
    do = suggest(name, known, "choose one", cutoff=0.4)
    raise TaskError("task", expected=f"a built-in name ({', '.join(BUILTIN_TASKS)}) or a Python file", got=name, do=do)


def load_task_and_data(task: Task | str) -> Task:
    """Load a task, if it is given by name or file, and load its training, validation and test data once."""
    found = load_task(task) if isinstance(task, str) else task
    if isinstance(found.validation, (int, float)):  # the training data are loaded once, and divided once
        whole = replace(found, validation=None).load("train")
        train, validation = split_off(whole, float(found.validation), found.name)
    else:
        train, validation = found.load("train"), None if found.validation is None else found.load("validation")
    tests = {name: found.load(name) for name in found.test_names}
    return replace(found, train=train, validation=validation, test=tests if len(tests) > 1 else tests["test"])


def task_file(name: str) -> Path | None:
    """Return the file from which a task is loaded; None for a built-in task.

    >>> task_file("linear"), task_file("mine.py")
    (None, PosixPath('mine.py'))
    """
    file = Path(name)
    is_builtin = split_file(name)[0] in BUILTIN_TASKS
    return file if not is_builtin and (file.suffix == ".py" or os.path.exists(file)) else None


def _from_file(file: Path) -> Task | KerasTask:
    if not os.path.isfile(file):  # unlike Path's method, it takes names that are too long
        raise TaskError("task", expected="a Python file that exists", got=str(file), do="check the path")
    spec = importlib.util.spec_from_file_location(f"rueda_task_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise TaskError("task", expected="a Python file", got=str(file), do="give it the suffix .py")
    source = TaskFile.read(file)  # before it runs: it may change the directory
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # needed by dataclasses and pickle in the module
    sys.path.insert(0, str(file.parent.resolve()))  # as Python does for a script
    try:
        spec.loader.exec_module(module)
    except RuedaError:
        raise
    except (Exception, SystemExit) as error:  # a file that calls sys.exit(0) must not pass for a training
        what = " ".join([f"{type(error).__name__}:", *str(error).split()]).rstrip(":")
        raise TaskError(f"{file}{_line_in(file, error)} raised {what}; the task file must run by itself") from error
    task = getattr(module, "task", None)
    if not isinstance(task, (Task, KerasTask)):
        do = "add `task = rueda.Task(...)`"
        raise TaskError(str(file), expected="a name `task` that is a rueda.Task", got=type(task).__name__, do=do)
    return replace(task, file=source)


def _line_in(file: Path, error: BaseException) -> str:
    """Return the innermost line of the file in an error's traceback, for a message."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename) == file.resolve()]
    return f", line {lines[-1]}," if lines else ""
