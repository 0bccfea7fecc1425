"""``python -m rueda.assess.worker train.py``: one worker of ``rueda assess``.

It reads its key, confines itself, loads torch, begins to observe, and only then runs the script.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from rueda.assess.confinement import Limits, confine
from rueda.world.identity import identify
from rueda.world.leaving import leave

VARIABLE = "RUEDA_ASSESS"


def main() -> None:
    """Run and observe a script."""
    from rueda.check.audit.watch.journal import VARIABLE as CHECK

    if VARIABLE not in os.environ or CHECK not in os.environ:
        sys.exit("rueda: expected a job of `rueda assess train.py -np 4`, which starts this module")
    options, folder = json.loads(os.environ.pop(VARIABLE)), Path(json.loads(os.environ.pop(CHECK))["folder"])
    rank, work = identify(os.environ).rank, Path.cwd()
    own = folder / f"rank-{rank}.key"
    key = bytes.fromhex(own.read_text())
    own.unlink()
    scratch = work / ".scratch"
    for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR", "MPLCONFIGDIR"):
        os.environ[name] = str(scratch)
    os.environ["USER"] = os.environ["LOGNAME"] = "learner"
    tempfile.tempdir = None
    held = confine(
        user=options["user"], readable=[Path(options["given"])], writable=[work, folder],
        limits=Limits(processor_seconds=options["processor_seconds"]),
    )  # fmt: skip
    _run(sys.argv[1:], folder, rank, key, tuple(options["shape"]), held)


def _run(command: list[str], folder: Path, rank: int, key: bytes, shape: tuple[int, ...], held: list[str]) -> None:
    from rueda.assess.owners import owners
    from rueda.assess.seal import Guard, SealedJournal, sealer
    from rueda.assess.watch import TrainingWatch
    from rueda.check.audit.watch.failing import leave_failed
    from rueda.check.audit.watch.observer import Observer
    from rueda.check.patches import Patches
    from rueda.check.running import run_script

    journal = SealedJournal(folder, rank, sealer(key))
    del key
    journal.note("isolation", held=held)
    guard = Guard(journal, [folder])
    journal.on_finish(guard.end)
    observer, patches = Observer(str(folder), rank, journal), Patches()
    try:
        with observer.active():
            watch = TrainingWatch(journal, shape)
            watch.install(patches)
            guard.start(owners(), lambda: watch.is_removed)
            del guard, journal, observer
            run_script(command)
    except (Exception, KeyboardInterrupt) as error:
        leave_failed(error)
    leave(0)


if __name__ == "__main__":
    main()
