"""The process of a job: ``python -m rueda.jobs.child FOLDER`` reads its job there and leaves its answer there."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path


def main(folder: Path) -> int:
    """Do the job and give the exit status: 0, that of an error, or 128 + signal."""
    # A parent that ignores Ctrl-C (nohup, the background of a script) hands that on; here SIGINT means: save and leave.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from rueda.errors import RuedaError
    from rueda.jobs.messages import call, read_job, write_answer, write_error
    from rueda.jobs.stopping import as_stopped

    job = read_job(folder)
    alone = bool(job["leave_with_parent"])
    if alone:
        _leave_with_parent()
    sys.argv = job["argv"]
    rank = "0" if alone else os.environ.get("RANK", "0")
    try:
        answer = call(job["function"], job["request"])
        if rank == "0":
            write_answer(folder, answer)
    except RuedaError as error:
        write_error(folder, rank, error)
        return error.exit_status
    except KeyboardInterrupt as interrupt:
        return as_stopped(interrupt).exit_status
    return 0


def _leave_with_parent() -> None:
    """End this process when the other end of its standard input is closed, which the death of its parent does."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
