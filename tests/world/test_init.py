"""Opening and closing a world, in processes of their own, since each has but one life."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from forked import forked
from ports import free_port
from rueda.world.identity import Identity
from rueda.world.rendezvous import _wait_for_all_ranks, local_store

SCRIPT = """
import os, rueda, torch
import torch.distributed as dist
from rueda.world.life import is_open
assert not is_open()
world = rueda.init(seed=3)
assert is_open()
total = world.all_reduce(torch.tensor([world.rank + 1.0]))
rueda.finish()
assert not is_open()
again = rueda.init(seed=3)          # a second life at the same place
total += again.all_reduce(torch.tensor([again.rank + 1.0]))
rueda.finish(); rueda.finish()
print(world.rank, world.size, total.item(), dist.is_initialized())
if "OWN_PORT" in os.environ:           # a group of the script's own is adopted
    os.environ["MASTER_PORT"] = os.environ["OWN_PORT"]
    dist.init_process_group("gloo")
    world = rueda.init()
    assert (world.rank, world.size) == (dist.get_rank(), 2)
    rueda.finish()
    assert dist.is_initialized()       # it was not ours to close
    dist.destroy_process_group()
"""


def environ(**variables: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RUEDA")}
    return {**kept, "OMP_NUM_THREADS": "1", **variables}


def start(code: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code],
        env=environ(**variables),
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def answers(*ranks: dict[str, str]) -> list[tuple[int, str, str]]:
    """Run the script once in each environment; return statuses, outputs and the last lines of the errors."""
    with forked(SCRIPT, [environ(**variables) for variables in ranks]) as started:
        ended = [process.wait() for process in started]
    return [(status, out.strip(), err.strip().splitlines()[-1] if err.strip() else "") for status, out, err in ended]


def worker(rank: int, size: int, port: str, **more: str) -> dict[str, str]:
    return {
        "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **more,
    }  # fmt: skip


def test_two_lives_and_an_adopted_group_on_two_workers_and_two_lives_on_one() -> None:
    port, own = free_port(), free_port()
    assert answers(*(worker(rank, 2, port, OWN_PORT=own) for rank in range(2)), {}) == [
        (0, "0 2 6.0 False", ""),
        (0, "1 2 6.0 False", ""),
        (0, "0 1 2.0 False", ""),
    ]


def test_a_missing_worker_is_named_in_time() -> None:
    port = free_port()
    begun = time.monotonic()
    (status0, _, error0), (status2, _, error2) = answers(*(worker(rank, 3, port, RUEDA_TIMEOUT="3") for rank in (0, 2)))
    assert time.monotonic() - begun < 30
    assert status0 == status2 == 1
    assert "WORLD_SIZE: expected 3 workers within 3 s, but some did not connect (ranks: 1)" in error0
    assert "expected 3 workers" in error2


UNREACHABLE = {
    "nobody listens": ({"MASTER_ADDR": "127.0.0.1"}, "MASTER_ADDR: expected rank 0 at 127.0.0.1, port"),
    "no such host": ({"MASTER_ADDR": "no-such-host.invalid"}, "MASTER_ADDR: expected the name or address"),
    "not a time": ({"RUEDA_TIMEOUT": "soon"}, "RUEDA_TIMEOUT: expected a positive number of seconds, got 'soon'"),
}
ERRORS = """
import json, os, sys, rueda
from rueda.errors import WorldError
from rueda.world import current
def told(call, changes):
    before = dict(os.environ)
    os.environ.update(changes)
    try:
        call()
    except WorldError as error:
        return str(error)
    finally:
        os.environ.clear()
        os.environ.update(before)
print(json.dumps([told(current, {}), *(told(rueda.init, changes) for changes in json.loads(sys.stdin.read()))]))
"""


def test_unreachable_rendezvous_and_a_launcher_without_init() -> None:
    process = start(ERRORS, **worker(1, 2, free_port(), RUEDA_TIMEOUT="2"))
    out, err = process.communicate(json.dumps([changes for changes, _ in UNREACHABLE.values()]), timeout=120)
    assert process.returncode == 0, err
    without_init, *errors = json.loads(out)
    expected = "torchrun started 2 workers, but this one is not connected to the others; call rueda.init() first"
    assert expected in without_init
    for name, error in zip(UNREACHABLE, errors, strict=True):
        assert UNREACHABLE[name][1] in error, name


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="malloc is tuned on Linux only")
def test_malloc_and_threads() -> None:
    code = """
import os, rueda, torch
from rueda.world import malloc
print(malloc.tune(), malloc.wanted())
rueda.init(); print(torch.get_num_threads(), os.environ.get("THP_MEM_ALLOC_ENABLE"))
"""
    for process, expected in (
        (start(code), ["True", "True", "1", "1"]),
        (start(code, RUEDA_MALLOC="default"), ["False", "False", "1", "None"]),
        (start(code, THP_MEM_ALLOC_ENABLE="0"), ["True", "True", "1", "0"]),
    ):
        out, err = process.communicate(timeout=120)
        assert out.split() == expected, err


def _offers_huge_pages() -> bool:
    try:
        return "[never]" not in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError:
        return False


@pytest.mark.skipif(not _offers_huge_pages(), reason="the kernel offers no huge pages")
def test_large_tensors_lie_in_huge_pages() -> None:
    code = """
import re, rueda, torch
from pathlib import Path
rueda.init()
tensor = torch.ones(1 << 24)
pages = re.findall(r"AnonHugePages: +([0-9]+) kB", Path("/proc/self/smaps").read_text())
print(sum(map(int, pages)) >= 1 << 14)
"""
    out, err = start(code).communicate(timeout=120)
    assert out.split() == ["True"], err


def test_a_signal_is_heard_while_a_worker_waits_for_the_others() -> None:
    """The others may have left at the same signal, and would never come."""
    heard, told = threading.Event(), []

    def send() -> None:
        os.kill(os.getpid(), signal.SIGUSR2)
        told.append(heard.wait(5))
        store.set("here/1", "late")

    store = local_store(60)
    before = signal.signal(signal.SIGUSR2, lambda *_: heard.set())
    try:
        threading.Timer(0.05, send).start()
        _wait_for_all_ranks(store, Identity(rank=0, size=2), 60)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert told == [True]
