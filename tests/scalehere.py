"""Serial scripts of ``tests/scale/scripts``: run as they are, or on the workers of the harness."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import torch

SCRIPTS = Path(__file__).parent / "scale" / "scripts"


@contextlib.contextmanager
def within(folder: Path) -> Any:
    kept = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(kept)


def serial(name: str, folder: Path) -> Any:
    """Run a script as it is, in this process, and return what it has saved."""
    folder.mkdir()
    kept = sys.argv
    sys.argv = [name]
    try:
        with within(folder):
            runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__")
    finally:
        sys.argv = kept
    return flat(torch.load(folder / "model.pt"))


def flat(state: Any) -> dict[str, torch.Tensor]:
    found = {}
    for key, value in state.items():
        found.update({f"{key}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {key: value})
    return found


def scaled(name: str, folder: str, **options: Any) -> Any:
    """Run a script on the workers of the harness, in the process of each."""
    from rueda.check.scale.options import ScaleOptions
    from rueda.check.scale.scaling import Scaling
    from rueda.world import current

    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # it may have children
    multiprocessing.set_start_method("fork", force=True)  # of the script's loaders, as in a process of its own
    with within(Path(folder)):
        scaling = Scaling(current(), ScaleOptions(**options))
        scaling.run([str(SCRIPTS / f"{name}.py")])
    return scaling
