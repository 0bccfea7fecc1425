"""What holds for all tests.

Before torch is loaded: one thread, so that results are the same on every machine; and no AMX where it ends the process.
Ctrl-C works also in a job that was started with SIGINT or SIGHUP ignored (a script's background, ``nohup``): such a
disposition is inherited, and the tests send both to what they start.

``make test`` runs the files in two processes more than cores, three or four; each keeps its own groups of workers.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

import harness
from rueda.world import instruction_sets
from rueda.world.cores import usable_cores

gc.disable()  # until all tests are collected: their imports create little garbage, and 15 s become 11
sys.dont_write_bytecode = False  # images of containers often forbid it, and each process would compile all it imports
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["RES_OPTIONS"] = "timeout:1 attempts:1"  # torch looks up the name of each peer; a lost query costs 5 seconds
os.environ.update(instruction_sets.limits(os.environ))
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

MOST_PROCESSES = 4  # each has up to nine workers, of a quarter of a gigabyte
LONG = tuple(
    f"test_{name}.py"
    for name in (
        *("browser", "many_hosts", "scripts", "drivers", "gallery", "strangers", "site"),
        *("elastic_training", "elastic", "elastic_horovod", "elastic_faults", "kubernetes_job"),
        *("local", "parallel", "signals", "training", "stall", "docs", "run"),
        *("trainings", "check_command", "sampling", "init", "study", "resume", "fuzz"),
        *("cycles", "damaged", "runner", "techniques", "command", "on_workers", "instruction_sets"),
        *("any_stage", "any_step", "shared_memory", "density", "noise_scale", "train", "checked"),
        *("commands", "examine", "measure", "forecast", "schedules"),
    )
)
"""files that take longest: they are begun first, so that no process is left alone with one at the end; those that wait
for processes to stop or to stall (``many_hosts``, ``drivers``, ``strangers`` ...) take turns with those that compute"""


def pytest_xdist_auto_num_workers() -> int:
    """Say how many processes ``-n auto`` means: two more than cores, since tests also wait for others."""
    return max(3, min(usable_cores() + 2, MOST_PROCESSES))


class ByFile(LoadFileScheduling):
    """Give whole files to the processes; those of ``tests/gpu`` to one, since each start of an impostor is dear."""

    def _split_scope(self, nodeid: str) -> str:
        return "tests/gpu" if nodeid.startswith("tests/gpu/") else super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile | None:
    return ByFile(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "torch.utils.data" in sys.modules:  # loaded by the tests that were collected
        harness.end_loaders_soon()
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))


@pytest.fixture(autouse=True)
def _own_environment() -> Iterator[None]:
    """Take back what a test or what it calls changes for later tests and for the processes that they start.

    ``malloc.tune`` sets a variable; ``load_task`` puts the task's folder first on ``sys.path``, as Python does with a
    script's, and a file there may have the name of a module of the standard library.
    """
    before, path = dict(os.environ), list(sys.path)
    yield
    if sys.path != path:
        sys.path[:] = path
    if dict(os.environ) != before:
        os.environ.clear()
        os.environ.update(before)


def pytest_collection_finish() -> None:
    # What the tests start imports torch sooner; the processes of the tests themselves have started as always.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [harness.QUICK_START, os.environ.get("PYTHONPATH")]))
    gc.freeze()  # modules and tests are never freed, so collections need not visit them
    gc.enable()
