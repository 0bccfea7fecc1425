"""What holds for all tests.

Before torch is loaded: one thread, so that results are the same on every machine; and no AMX where it ends the process.
Ctrl-C works also in a job that was started with SIGINT ignored (``nohup``, the background of a script): such a
disposition is inherited, and the tests send SIGINT to what they start.

``make test`` runs the files in as many processes as there are cores, up to four; each keeps its own groups of workers.
"""

from __future__ import annotations

import os
import signal

import pytest

from rueda.world import instruction_sets
from rueda.world.cores import usable_cores

os.environ["OMP_NUM_THREADS"] = "1"
os.environ.update(instruction_sets.limits(os.environ))
signal.signal(signal.SIGINT, signal.default_int_handler)

MOST_PROCESSES = 4  # each has up to nine workers, of a quarter of a gigabyte
LONG = tuple(f"test_{name}.py" for name in ("many_hosts", "browser", "local", "resume", "docs", "techniques"))
"""files that take longest: they are begun first, so that no process is left alone with one at the end"""


def pytest_xdist_auto_num_workers() -> int:
    """Say how many processes ``-n auto`` means; none beside this one where there is one core.

    One process more than cores was no faster on 2 cores, and tests with real hosts came too late there.
    """
    cores = usable_cores()
    return min(cores, MOST_PROCESSES) if cores > 1 else 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))
