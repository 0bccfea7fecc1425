"""One run of a study, in a process of its own: ``python -m rueda.study.one_run TASK FOLDER``.

The recipe lies in the folder. The process goes on from the newest checkpoint there, and it ends when the study does,
even if that was killed: two processes must never write one folder.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path


def leave_with_parent() -> None:
    """End this process when the other end of its standard input is closed, which the death of its parent does."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        os._exit(143)

    threading.Thread(target=watch, daemon=True).start()


def main(task: str, folder: Path) -> int:
    """Train the folder's recipe and give the exit status: 0, or 128 + signal."""
    from rueda.records import Run
    from rueda.train import fit

    recipe = Run(folder).recipe()
    # One worker needs no rehearsal: its images/s are real.
    result = fit(task, recipe, folder=folder, resume=True, progress=False, rehearse=recipe.workers > 1)
    return 128 + result.signal if result.signal else 0


if __name__ == "__main__":
    from rueda.errors import RuedaError

    leave_with_parent()
    try:
        sys.exit(main(sys.argv[1], Path(sys.argv[2])))
    except RuedaError as error:
        print(f"rueda: {error}", file=sys.stderr)
        sys.exit(2)
