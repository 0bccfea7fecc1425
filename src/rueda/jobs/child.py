"""The process of a job: ``python -m rueda.jobs.child FOLDER`` reads ``job.json`` there and writes its answer there."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from pathlib import Path


def main(folder: Path) -> int:
    """Run the job and return the exit status: 0, that of a RuedaError, or that of :class:`rueda.jobs.Stopped`."""
    # A process inherits ignored signals from its parent (nohup, a background job); SIGINT must mean: save and exit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()  # imports create little garbage, and each collection would visit all of torch's objects
    from rueda.errors import RuedaError
    from rueda.files.plain_warnings import print_plain_warnings
    from rueda.jobs.messages import call, load, read_job, write_answer, write_error, write_saved
    from rueda.jobs.stopping import as_stopped, import_numpy, signals_raise_stopped

    print_plain_warnings()
    job = read_job(folder)
    alone = bool(job["leave_with_parent"])
    if alone:
        _leave_with_parent()
    sys.argv = job["argv"]
    rank = "0" if alone else os.environ.get("RANK", "0")
    try:
        with signals_raise_stopped():
            import_numpy()
            function = load(job["function"])
            gc.freeze()  # imported modules are never freed, so later collections need not visit them
            gc.enable()
            answer = call(function, job["request"])
            if rank == "0":
                write_answer(folder, answer)
    except RuedaError as error:
        write_error(folder, rank, error)
        return error.exit_status
    except KeyboardInterrupt as interrupt:
        stopped = as_stopped(interrupt)
        if stopped.saved:
            write_saved(folder)
        return stopped.exit_status
    return 0


def _leave_with_parent() -> None:
    """When standard input is closed, which happens when the parent process dies, save and exit as after SIGTERM."""
    from rueda.world.signals import exit_status, grace_seconds

    def watch() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace_seconds(os.environ))
        os._exit(exit_status(signal.SIGTERM))

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    status = main(Path(sys.argv[1]))
    from rueda.world.leaving import leave

    leave(status)
