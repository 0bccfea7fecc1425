"""The argument vector that a host executes for the program that the user typed."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence

from rueda.errors import LaunchError

_PYTHON = re.compile(r"python[0-9.]*")


def resolve(program: Sequence[str], *, module: bool = False) -> list[str]:
    """Return the argument vector that runs ``program`` on this host, or raise an error that says what is missing.

    A script (``train.py``) and a module run on the interpreter that runs Rueda; any other program is looked up on
    ``PATH``. Arguments are passed on unchanged.

    >>> resolve(["json.tool", "--help"], module=True)[1:]
    ['-u', '-m', 'json.tool', '--help']
    >>> resolve(["no/such.py"])
    Traceback (most recent call last):
    rueda.errors.LaunchError: the script no/such.py does not exist in ...; correct the path
    """
    first, rest = program[0], list(program[1:])
    if module:
        return [sys.executable, "-u", "-m", first, *rest]
    if first.endswith((".py", ".pyz", ".pyw")):
        _need_script(first)
        return [sys.executable, "-u", first, *rest]
    if _PYTHON.fullmatch(os.path.basename(first)) and rest and rest[0].endswith(".py"):
        _need_script(rest[0])
    found = first if first == sys.executable else shutil.which(first)
    if found is None and first in ("python", "python3"):
        found = sys.executable  # a machine may have no other `python` than the one that runs this
    if found is None:
        raise LaunchError(_missing_program(first))
    return [found, *rest]


def is_rueda(argv: Sequence[str]) -> bool:
    """Return whether an argument vector runs a command of Rueda; its other modules may run a user's script.

    >>> is_rueda(["python", "-m", "rueda", "train"]), is_rueda(["python", "-u", "train.py", "-m", "rueda"])
    (True, False)
    """
    words = [word for word in argv[1:4] if word != "-u"]
    return words[:1] == ["-m"] and words[1:2] == ["rueda"]


def _need_script(path: str) -> None:
    if os.path.isfile(path):
        return
    if os.path.isdir(path):
        raise LaunchError(f"the script {path} is a directory; name a file")
    raise LaunchError(f"the script {path} does not exist in {os.getcwd()}; correct the path")


def _missing_program(name: str) -> str:
    if os.path.isdir(name):
        return f"the program {name} is a directory; name a script or a program"
    if os.path.isfile(name):
        return f"the program {name} is not executable; run it with its interpreter, as in `python {name}`"
    return f"there is no program {name} in this directory or on PATH; correct the name"
