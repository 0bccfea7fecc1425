"""``python -m rueda.hvd train.py``: a script for which ``import horovod`` finds Rueda, with any launcher or none."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from rueda.hvd.alias import install


def main() -> None:
    """Run the script in this process, as ``python train.py`` would."""
    words = sys.argv[1:]
    module = words[:1] == ["-m"]
    if module:
        del words[0]
    if not words or words[0].startswith("-"):
        sys.exit("rueda: give a script, as in `mpirun -np 4 python -m rueda.hvd train.py --lr 0.1`, or -m and a module")
    install()
    sys.argv = words
    if module:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        return
    if not Path(words[0]).is_file():
        sys.exit(f"rueda: the script {words[0]} does not exist in {Path.cwd()}; correct the path")
    sys.path[0] = str(Path(words[0]).resolve().parent)  # where Python itself would look first
    runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
