"""``python -m rueda.check.audit train.py``: one worker of ``rueda check``."""

from __future__ import annotations

import gc
import json
import os
import sys

from rueda.world.identity import identify
from rueda.world.leaving import leave


def main() -> None:
    """Observe a script while it runs."""
    from rueda.check.audit.watch.journal import VARIABLE

    command = sys.argv[1:]
    is_module = command[:1] == ["-m"]
    command = command[is_module:]
    if VARIABLE not in os.environ or not command:
        sys.exit("rueda: expected a job of `rueda check -np 2 train.py`, which starts this module")
    options = json.loads(os.environ[VARIABLE])

    gc.disable()  # imports create little garbage, and each collection would visit all of torch's objects
    from rueda.check.audit.watch.failing import leave_failed
    from rueda.check.audit.watch.observer import run_observed
    from rueda.world.compiler_import import spare_compiler

    spare_compiler()
    gc.freeze()  # imported modules are never freed, so later collections need not visit them
    gc.enable()
    rank = identify(os.environ).rank
    try:
        run_observed(command, options["folder"], rank, module=is_module, updates=options["updates"])
    except (Exception, KeyboardInterrupt) as error:
        leave_failed(error)
    leave(0)


if __name__ == "__main__":
    main()
