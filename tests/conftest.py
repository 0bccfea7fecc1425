"""What holds for all tests.

Before torch is loaded: one thread, so that results are the same on every machine; and no AMX where it ends the process.
Ctrl-C works also in a job that was started with SIGINT ignored (``nohup``, the background of a script): such a
disposition is inherited, and the tests send SIGINT to what they start.

``make test`` runs the files in one process more than there are cores, four at most; each keeps its own groups of
workers.
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
    """Say how many processes ``-n auto`` means: one more than cores, since tests of launchers often wait."""
    return min(usable_cores() + 1, MOST_PROCESSES)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))
