"""The module name ``horovod`` for :mod:`rueda.hvd`, so that Horovod's scripts run unmodified.

``horovod.torch`` *is* ``rueda.hvd.torch``: the same module object under two names, at every depth. So a class is the
same class whichever way it was imported, state exists once, and a pickle that refers to either module can be loaded.

There are four ways to get the name. In all of them a genuine Horovod, if one is installed, keeps its name:

==========================================  =====================================================================
``rueda run``, ``rueda horovodrun``         put the folder ``hvd/shim`` on the ``PYTHONPATH`` of the workers
``python -m rueda.hvd train.py``            runs one script with the name, under mpirun, srun, torchrun, or alone
``import rueda.hvd; rueda.hvd.install()``   one line at the top of the script
``python -m rueda.hvd.alias --install``     permanently: a ``.pth`` file adds the folder to the end of this
                                            environment's path; ``--uninstall`` removes the file
==========================================  =====================================================================

``python -m rueda.hvd.alias`` prints the folder, to be put on ``PYTHONPATH`` by hand. ``RUEDA_HOROVOD=1`` prefers Rueda
to a genuine Horovod; with ``RUEDA_HOROVOD=0``, ``rueda run`` does not provide the name.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from rueda.errors import WorldError
from rueda.hvd import legacy_keras
from rueda.hvd.names import explain_absence, no_module

ALIAS, PACKAGE = "horovod", "rueda.hvd"
FOLDER = Path(__file__).parent / "shim"
_SAME = {".tensorflow.keras": ".keras"}  # Horovod has two modules for one purpose; here they are one


def install(*, force: bool = False) -> bool:
    """Let ``import horovod`` import Rueda in this process; further calls do nothing.

    Args:
        force: use Rueda even if a genuine Horovod is installed.

    Returns:
        Whether ``horovod`` is Rueda's; False if a genuine one is installed and keeps the name.

    Raises:
        WorldError: ``force`` was given, but a genuine Horovod has been imported already.
    """
    package = importlib.import_module(PACKAGE)
    present = sys.modules.get(ALIAS)
    if present is package:
        return True
    if present is not None and _is_genuine(present.__spec__):
        if force:
            raise WorldError(
                "a genuine Horovod has been imported already; call rueda.hvd.install(force=True) before that import"
            )
        return False
    if not force and os.environ.get("RUEDA_HOROVOD") != "1" and find_genuine() is not None:
        return False
    install_finder()
    sys.modules[ALIAS] = package
    return True


def install_finder() -> None:
    """Let the finder below handle imports of ``horovod.*``, and explain those of names that Rueda does not have."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        # Before the finder of files, which would import rueda/hvd/torch a second time as another module.
        sys.meta_path.insert(0, _Finder())


def find_genuine() -> ModuleSpec | None:
    """Find an installed Horovod that is not Rueda's."""
    own = os.path.realpath(FOLDER)
    spec = PathFinder.find_spec(ALIAS, [entry for entry in sys.path if os.path.realpath(entry or ".") != own])
    return spec if _is_genuine(spec) else None


def replace_shim() -> None:
    """Replace the module ``hvd/shim/horovod.py``, which is being imported, by Rueda's or by a genuine Horovod."""
    if legacy_keras.is_wanted():
        legacy_keras.install()
    if install():
        return
    spec = find_genuine()
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[ALIAS] = module
    spec.loader.exec_module(module)


def _is_genuine(spec: ModuleSpec | None) -> bool:
    # A folder of this name that is not a package, such as one with scripts, has no origin.
    return spec is not None and spec.origin is not None and Path(spec.origin).parent.resolve() != FOLDER.resolve()


class _Finder(MetaPathFinder):
    """Finds ``horovod.x`` as ``rueda.hvd.x``, and says what to use instead of names that Rueda does not have."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a submodule of ``horovod``; return None for other modules."""
        top = next((name for name in (ALIAS, PACKAGE) if fullname.startswith(f"{name}.")), None)
        if top is None:
            return None
        below = fullname.removeprefix(top)
        real = PACKAGE + below
        for one, other in _SAME.items():
            if below == one or below.startswith(f"{one}."):
                real = PACKAGE + other + below.removeprefix(one)
        # `from horovod import spark` looks for rueda.hvd.spark, since the module's own name is rueda.hvd. (Within
        # `from`, Python hides an error that carries the name that it looked for: this one carries Horovod's.)
        if explain_absence(ALIAS + below):
            raise no_module(ALIAS + below)
        if real == fullname:
            return None
        found = importlib.util.find_spec(real)
        if found is None:
            raise no_module(fullname)
        return ModuleSpec(
            fullname, _Loader(real), origin=found.origin, is_package=found.submodule_search_locations is not None
        )


class _Loader(Loader):
    """Loads a module by its real name and returns the same object for the alias."""

    def __init__(self, real: str) -> None:
        self._real = real
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Import the module by its real name."""
        module = importlib.import_module(self._real)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the module's own spec, which Python has replaced by the alias's; the module has run already."""
        module.__spec__ = self._spec


def main(arguments: Sequence[str]) -> str:
    """Return the folder, or write or remove the ``.pth`` file and return a message."""
    file = Path(sysconfig.get_path("purelib")) / "rueda-horovod.pth"
    try:
        match [*arguments]:
            case []:
                return str(FOLDER)
            case ["--install"]:
                file.write_text(f"{FOLDER}\n", encoding="utf-8")
                return f"`import horovod` finds Rueda in this environment from now on, by {file}"
            case ["--uninstall"]:
                file.unlink(missing_ok=True)
                return f"removed {file}"
    except OSError as error:
        raise WorldError(f"{file} cannot be written ({error.strerror}); put {FOLDER} on PYTHONPATH instead") from None
    raise WorldError(
        "rueda.hvd.alias", expected="nothing, --install or --uninstall", got=" ".join(arguments), do="choose one"
    )


if __name__ == "__main__":
    try:
        print(main(sys.argv[1:]))
    except WorldError as mistake:
        sys.exit(f"rueda: {mistake}")
