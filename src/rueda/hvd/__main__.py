"""``python -m rueda.hvd train.py``: run a script in which ``import horovod`` imports Rueda, under any launcher.

``python -m rueda.hvd --legacy-keras train.py`` also takes what was written for Keras 2 (:mod:`rueda.hvd.legacy_keras`).
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from rueda.hvd import legacy_keras
from rueda.hvd.alias import install


def main() -> None:
    """Run a script or a module in this process as ``python train.py`` would."""
    arguments = sys.argv[1:]
    is_legacy = arguments[:1] == ["--legacy-keras"]
    if is_legacy:
        del arguments[0]
    is_module = arguments[:1] == ["-m"]
    if is_module:
        del arguments[0]
    if not arguments or arguments[0].startswith("-"):
        sys.exit("rueda: give a script, as in `mpirun -np 4 python -m rueda.hvd train.py --lr 0.1`, or -m and a module")
    install()
    if is_legacy:
        legacy_keras.enter()
    sys.argv = arguments
    if is_module:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        return
    script = Path(arguments[0])
    if not script.is_file():
        sys.exit(f"rueda: the script {script} does not exist in {Path.cwd()}; correct the path")
    sys.path[0] = str(script.resolve().parent)  # as Python itself does for a script
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main()
