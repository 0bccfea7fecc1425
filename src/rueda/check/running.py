"""Run somebody's script in this process, as ``python train.py --lr 0.1`` would."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType

from rueda.errors import LaunchError
from rueda.world.idle_threads import wait_at_exit


def run_script(command: Sequence[str], *, module: bool = False) -> None:
    """Run a script or a module as ``__main__``.

    The module stays loaded afterwards, unlike with :mod:`runpy`: if its globals were freed at its end, the process
    group of a DistributedDataParallel would be destroyed while Python's lock is held, for which a thread of Gloo may
    wait (torch 2.13). For the same reason the process waits for such threads when it ends: a script whose last
    collective comes just before its end would otherwise be aborted now and then (:mod:`rueda.world.idle_threads`).

    Args:
        command: the script and its arguments.
        module: whether the first word is a module, as in ``python -m``.
    """
    code, main, first = _module(command[0]) if module else _script(command[0])
    sys.argv = [str(main.__file__) if module else command[0], *command[1:]]
    sys.path[0] = first
    sys.modules["__main__"] = main
    wait_at_exit()
    exec(code, vars(main))


def _script(path: str) -> tuple[CodeType, ModuleType, str]:
    main = ModuleType("__main__")
    main.__file__ = path
    main.__builtins__ = __builtins__  # type: ignore[attr-defined]
    return compile(Path(path).read_bytes(), path, "exec"), main, str(Path(path).resolve().parent)


def _module(name: str) -> tuple[CodeType, ModuleType, str]:
    sys.path[0] = str(Path.cwd())  # where Python itself looks first
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
    code = getattr(spec.loader, "get_code", lambda name: None)(spec.name) if spec is not None else None
    if spec is None or code is None:
        raise LaunchError("-m", expected="a module that can be run", got=name, do="correct its name")
    main = ModuleType("__main__")
    main.__file__, main.__spec__, main.__package__ = spec.origin, spec, spec.parent
    main.__builtins__ = __builtins__  # type: ignore[attr-defined]
    return code, main, str(Path.cwd())
