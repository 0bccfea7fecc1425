"""``python -m rueda.check.audit train.py``: one worker of ``rueda check``."""

from __future__ import annotations

import os
import runpy
import sys
import time
from pathlib import Path

from rueda.world.identity import identify
from rueda.world.leaving import leave

_WAIT_SECONDS = 30.0  # for the others to make their last step, too


def main() -> None:
    """Observe a script while it runs."""
    import json

    from rueda.check.audit.watch.journal import VARIABLE

    command = sys.argv[1:]
    is_module = command[:1] == ["-m"]
    command = command[is_module:]
    if VARIABLE not in os.environ or not command:
        sys.exit("rueda: expected a job of `rueda check -np 2 train.py`, which starts this module")
    options = json.loads(os.environ[VARIABLE])
    status = _observe(command, is_module, options["folder"], options["updates"])
    leave(status)


def _observe(command: list[str], is_module: bool, folder: str, updates: int) -> int:
    from rueda.check.audit.watch.observer import Observer

    observer = Observer(folder, identify(os.environ).rank)
    if updates:
        observer.limit(updates, lambda: time.sleep(_WAIT_SECONDS))
    sys.argv = list(command)
    sys.path[0] = str(Path.cwd()) if is_module else str(Path(command[0]).resolve().parent)
    with observer.active():
        if is_module:
            runpy.run_module(command[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(command[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    main()
