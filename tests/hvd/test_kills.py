"""A rank is killed, or raises, while all of them reduce: the others get an error, and nothing stays behind.

The tests kill three times; ``RUEDA_FUZZ=1000`` asks for a hundred.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
from subprocess import PIPE

import pytest

from commandline import environ
from forked import forked

FUZZ = min(100, int(os.environ.get("RUEDA_FUZZ", "0")) // 10)
SCRIPT = """
import os, signal, sys, threading, time
import torch
import rueda.hvd.torch as hvd

hvd.init()
tensors = [torch.ones(1000 + 100 * number) for number in range(30)] + [torch.ones(1_000_000)]

def step():
    handles = [hvd.allreduce_async_(tensor, name=str(n), op=hvd.Max) for n, tensor in enumerate(tensors)]
    for handle in handles:
        hvd.synchronize(handle)

for _ in range(3):
    step()
victim, seconds = int(sys.argv[1]), float(sys.argv[2])
if hvd.rank() == victim:
    threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
begun = time.monotonic()
try:
    while time.monotonic() < begun + 100:
        step()
    os._exit(1)
except hvd.HorovodInternalError as error:
    print(f"ended: {error}", flush=True)
    hvd.shutdown()
    os._exit(3)
"""
KILLS = [(number % 3, random.Random(number).uniform(0.0, 0.1)) for number in range(max(3, FUZZ))]


def in_shared_memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "rueda" in name} if os.path.isdir("/dev/shm") else set()


def ranks_of(size: int) -> list[dict[str, str]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    return [
        environ(
            RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size),
            MASTER_ADDR="127.0.0.1", MASTER_PORT=port, OMP_NUM_THREADS="1",
        )
        for rank in range(size)
    ]  # fmt: skip


@pytest.mark.parametrize(("victim", "seconds"), KILLS)
def test_the_others_end_when_a_rank_is_killed_during_a_reduction(victim: int, seconds: float) -> None:
    before = in_shared_memory()
    with forked(SCRIPT, ranks_of(3), str(victim), str(seconds)) as started:
        ended = [process.wait() for process in started]
    for rank, (status, out, err) in enumerate(ended):
        assert status == (-signal.SIGKILL if rank == victim else 3), out + err
        assert rank == victim or f"rank {victim}" in out
    assert in_shared_memory() <= before


RAISING = """
import sys
import torch
import rueda.hvd.torch as hvd
from rueda.hvd.core import engine

engine.LEAVE_SECONDS = 1000.0  # a rank that raises does not wait for the others to leave
hvd.init()
hvd.allreduce(torch.ones(3), name="first")
if hvd.rank() == int(sys.argv[1]):
    raise ValueError("no such image\\nas this one")
try:
    hvd.allreduce(torch.ones(3), name="second")
except hvd.HorovodInternalError as error:
    print(f"ended: {error}", flush=True)
    hvd.shutdown()
"""


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_an_exception_ends_does_not_wait_for_the_others(victim: int) -> None:
    started = [
        subprocess.Popen([sys.executable, "-c", RAISING, str(victim)], env=rank, stdout=PIPE, stderr=PIPE, text=True)
        for rank in ranks_of(2)  # real starts: a forked process runs no exit handlers
    ]
    try:
        ended = [(*process.communicate(timeout=300), process.returncode) for process in started]
    finally:
        for process in started:
            process.kill()
    told, _, _ = ended[1 - victim]
    assert told == f"ended: rank {victim} was ended by ValueError: no such image\n", ended
    assert [status for _, _, status in ended] == [int(rank == victim) for rank in range(2)], ended
