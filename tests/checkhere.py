"""Run a distributed script on observed workers: processes that a server with torch forks, since starts are dear.

What ``rueda check`` does between the start of the workers and its table is the same; the command itself has tests of
its own.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import PRELOADED
from rueda.check.audit.judge.journals import read_journals
from rueda.check.audit.judge.judging import judge
from rueda.check.audit.launching import Watch
from rueda.records.script_check import Verdict

GALLERY = Path(__file__).parent / "check" / "gallery"
SECONDS = 60.0


def marked(script: Path) -> dict[str, list[int]]:
    """Return the mistakes of a script with their lines, as its comments ``# wrong: NAME`` tell them."""
    found: dict[str, list[int]] = {}
    for number, line in enumerate(script.read_text(encoding="utf-8").splitlines(), 1):
        match = re.search(r"# wrong: ([\w-]+)", line)
        if match:
            found.setdefault(match[1], []).append(number)
    return found


def check(script: Path, folder: Path, *, size: int = 2, preloaded: Sequence[str] = ()) -> list[Verdict]:
    """Run a script on observed workers in a folder, and judge it; ranks that wait in vain are ended."""
    journal, working = folder / "journal", folder / "here"
    journal.mkdir()
    working.mkdir()
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED, *preloaded])
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    started = [
        context.Process(target=_observe, args=(str(script), str(journal), str(working), rank, size, port), daemon=True)
        for rank in range(size)
    ]
    hangs = {"different-collectives", "different-batch-counts"} & marked(script).keys()
    watch = Watch(journal, size, patience=3.0 if hangs else 20.0)  # on a busy machine a rank may get little time
    for process in started:
        process.start()
    watch.start()
    for process in started:
        process.join(SECONDS)
        if process.is_alive():
            process.kill()
    watch.end()
    journals = read_journals(journal, size, str(script))
    journals.waiting = watch.waiting
    assert not journals.flat("blind"), "the observation has failed"
    if script.parent.name == "right":
        assert not journals.flat("failure"), "a right script has failed while it was observed"
    return judge(journals)


def _observe(script: str, journal: str, working: str, rank: int, size: int, port: int) -> None:
    from rueda.check.audit.watch.observer import run_observed

    gc.freeze()  # as the command does: modules are never freed, and collections would copy their pages
    multiprocessing.set_start_method("fork", force=True)  # of the script's loaders, as in a process of its own
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # it may have children
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size),
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1", GROUP_RANK="0",
        TORCHELASTIC_RUN_ID="check",  # by which Lightning knows that somebody else starts the workers
    )  # fmt: skip
    os.chdir(working)
    output = os.open(f"{journal}/rank-{rank}.out", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout = open(1, "w", closefd=False, buffering=1)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False, buffering=1)  # noqa: SIM115
    from rueda.hvd.alias import install

    install()
    run_observed([script], journal, rank)
