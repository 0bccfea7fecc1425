"""The name ``horovod`` for :mod:`rueda.hvd`, so that Horovod's scripts run as they are.

``horovod.torch`` *is* ``rueda.hvd.torch``: the same module object under two names, at every depth. So a class is one
class whichever way it was imported, state is kept once, and a pickle that names either module loads.

Four ways to it; a genuine Horovod, where one is installed, keeps its name in all of them:

==========================================  =====================================================================
``rueda run``, ``rueda horovodrun``         the workers find the folder ``hvd/shim`` on their ``PYTHONPATH``
``python -m rueda.hvd train.py``            runs one script with the name; after mpirun, srun, torchrun, or alone
``import rueda.hvd; rueda.hvd.install()``   one line at the top of the script
``python -m rueda.hvd.alias --install``     for good: a ``.pth`` file adds the folder to this environment's path,
                                            behind everything else; ``--uninstall`` removes it
==========================================  =====================================================================

``python -m rueda.hvd.alias`` prints the folder, for a ``PYTHONPATH`` of one's own. ``RUEDA_HOROVOD=1`` prefers Rueda to
a genuine Horovod; ``RUEDA_HOROVOD=0`` keeps ``rueda run`` from offering the name.
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
from rueda.hvd.names import explain_absence, no_module

ALIAS, HOME = "horovod", "rueda.hvd"
FOLDER = Path(__file__).parent / "shim"
_PTH = "rueda-horovod.pth"


def install(*, force: bool = False) -> bool:
    """Let ``import horovod`` find Rueda in this process; safe to call again.

    Args:
        force: also where a genuine Horovod is installed.

    Returns:
        Whether ``horovod`` is Rueda's; False where a genuine one is installed and was left alone.

    Raises:
        WorldError: forced, but a genuine Horovod has been imported already.
    """
    home = importlib.import_module(HOME)
    present = sys.modules.get(ALIAS)
    if present is home:
        return True
    if present is not None and _is_genuine(present.__spec__):
        if force:
            raise WorldError(
                "horovod has been imported already, and it is a genuine one; call rueda.hvd.install() first"
            )
        return False
    if not force and os.environ.get("RUEDA_HOROVOD") != "1" and genuine() is not None:
        return False
    watch()
    sys.modules[ALIAS] = home
    return True


def watch() -> None:
    """Let imports below ``horovod``, and those of what is gone, pass through the finder below."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        # Before the finder of files, which would load rueda/hvd/torch a second time, as another module.
        sys.meta_path.insert(0, _Finder())


def genuine() -> ModuleSpec | None:
    """Find an installed Horovod that is not Rueda's."""
    own = os.path.realpath(FOLDER)
    spec = PathFinder.find_spec(ALIAS, [entry for entry in sys.path if os.path.realpath(entry or ".") != own])
    return spec if _is_genuine(spec) else None


def take_place() -> None:
    """Put the right module in the place of the stand-in ``hvd/shim/horovod.py``, which is being imported."""
    if install():
        return
    spec = genuine()
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[ALIAS] = module
    spec.loader.exec_module(module)


def _is_genuine(spec: ModuleSpec | None) -> bool:
    # A folder that merely has the name, such as one full of scripts, has no loader of its own and no origin.
    return spec is not None and spec.origin is not None and Path(spec.origin).parent.resolve() != FOLDER.resolve()


class _Finder(MetaPathFinder):
    """Finds ``horovod.x`` as ``rueda.hvd.x``; says what to use instead of what is not there."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module below ``horovod``; others are none of its business."""
        top = next((name for name in (ALIAS, HOME) if fullname.startswith(f"{name}.")), None)
        if top is None:
            return None
        below = fullname.removeprefix(top)
        real = HOME + below
        # `from horovod import spark` asks for rueda.hvd.spark, the module's own name. (Python hides the error of an
        # import within `from` if it carries the very name that was asked for: this one carries Horovod's.)
        if explain_absence(ALIAS + below):
            raise no_module(ALIAS + below)
        if top == HOME:
            return None
        found = importlib.util.find_spec(real)
        if found is None:
            raise no_module(fullname)
        return ModuleSpec(
            fullname, _Loader(real), origin=found.origin, is_package=found.submodule_search_locations is not None
        )


class _Loader(Loader):
    """Gives the module that is already there under its other name."""

    def __init__(self, real: str) -> None:
        self._real = real
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Import the module by its own name."""
        module = importlib.import_module(self._real)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing again; but Python has put the alias's spec on the module, which keeps its own."""
        module.__spec__ = self._spec


def _pth() -> Path:
    return Path(sysconfig.get_path("purelib")) / _PTH


def main(words: Sequence[str]) -> str:
    """Print the folder, or write or remove the ``.pth`` file."""
    if not words:
        return str(FOLDER)
    file = _pth()
    try:
        if list(words) == ["--install"]:
            file.write_text(f"{FOLDER}\n", encoding="utf-8")
            return f"`import horovod` finds Rueda in this environment from now on, by {file}"
        if list(words) == ["--uninstall"]:
            file.unlink(missing_ok=True)
            return f"removed {file}"
    except OSError as error:
        raise WorldError(f"{file} cannot be written ({error.strerror}); put {FOLDER} on PYTHONPATH instead") from None
    raise WorldError(
        "rueda.hvd.alias", expected="nothing, --install or --uninstall", got=" ".join(words), do="choose one"
    )


if __name__ == "__main__":
    try:
        print(main(sys.argv[1:]))
    except WorldError as mistake:
        sys.exit(f"rueda: {mistake}")
