"""Opening and closing a world, in processes of their own, since each has but one life."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import pytest

SCRIPT = """
import rueda, torch
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
print(world.rank, world.size, total.item(), torch.distributed.is_initialized())
"""


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def start(code: str, **variables: str) -> subprocess.Popen[str]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("RUEDA")}
    environ.update(OMP_NUM_THREADS="1", **variables)
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code],
        env=environ,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def answer(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out.strip(), err.strip().splitlines()[-1] if err.strip() else ""


def worker(rank: int, size: int, port: str, **more: str) -> dict[str, str]:
    return {
        "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **more,
    }  # fmt: skip


def test_two_lives_on_two_workers_and_on_one() -> None:
    port = free_port()
    processes = [start(SCRIPT, **worker(rank, 2, port)) for rank in range(2)] + [start(SCRIPT)]
    assert [answer(process) for process in processes] == [
        (0, "0 2 6.0 False", ""),
        (0, "1 2 6.0 False", ""),
        (0, "0 1 2.0 False", ""),
    ]


def test_a_missing_worker_is_named_in_time() -> None:
    begun = time.monotonic()
    port = free_port()
    processes = [start(SCRIPT, **worker(rank, 3, port, RUEDA_TIMEOUT="3")) for rank in (0, 2)]
    (status0, _, error0), (status2, _, error2) = map(answer, processes)
    assert time.monotonic() - begun < 30
    assert status0 == status2 == 1
    assert "WORLD_SIZE: expected 3 workers within 3 s, but some never came (ranks: 1)" in error0
    assert "expected 3 workers" in error2


UNREACHABLE = {
    "nobody listens": ({"MASTER_ADDR": "127.0.0.1"}, "MASTER_ADDR: expected rank 0 at 127.0.0.1, port"),
    "no such host": ({"MASTER_ADDR": "no-such-host.invalid"}, "MASTER_ADDR: expected the name or address"),
    "not a time": ({"RUEDA_TIMEOUT": "soon"}, "RUEDA_TIMEOUT: expected a positive number of seconds, got 'soon'"),
}


def test_unreachable_rendezvous() -> None:
    cases = {
        name: start(SCRIPT, **worker(1, 2, free_port(), **{"RUEDA_TIMEOUT": "2", **changes}))
        for name, (changes, _) in UNREACHABLE.items()
    }
    for name, process in cases.items():
        status, _, error = answer(process)
        assert status == 1, name
        assert UNREACHABLE[name][1] in error, name


def test_a_launcher_without_init_is_noticed() -> None:
    code = "from rueda.world import current; current()"
    status, _, error = answer(start(code, **worker(0, 2, free_port())))
    assert status == 1
    assert "torchrun started 2 workers, but this one has not met the others; call rueda.init() first" in error


def test_a_group_of_the_scripts_own_is_adopted() -> None:
    code = """
import torch.distributed as dist, rueda
dist.init_process_group("gloo")
world = rueda.init()
assert (world.rank, world.size) == (dist.get_rank(), 2)
rueda.finish()
assert dist.is_initialized()  # it was not ours to close
dist.destroy_process_group()
"""
    port = free_port()
    processes = [start(code, **worker(rank, 2, port)) for rank in range(2)]
    assert [answer(process)[0] for process in processes] == [0, 0]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="malloc is tuned on Linux only")
def test_malloc_and_threads() -> None:
    code = """
import rueda, torch
from rueda.world import malloc
print(malloc.tune(), malloc.wanted())
rueda.init(); print(torch.get_num_threads())
"""
    assert answer(start(code))[1].split() == ["True", "True", "1"]
    assert answer(start(code, RUEDA_MALLOC="default"))[1].split() == ["False", "False", "1"]
