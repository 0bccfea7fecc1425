"""A rank is killed while all of them reduce: the others get an error, and nothing stays behind.

The tests kill three times; ``RUEDA_FUZZ=1000`` asks for a hundred.
"""

from __future__ import annotations

import os
import random
import signal
import socket

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


@pytest.mark.parametrize(("victim", "seconds"), KILLS)
def test_the_others_end_when_a_rank_is_killed_during_a_reduction(victim: int, seconds: float) -> None:
    before = in_shared_memory()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    ranks = [
        environ(
            RANK=str(rank), WORLD_SIZE="3", LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="3", MASTER_ADDR="127.0.0.1",
            MASTER_PORT=port, OMP_NUM_THREADS="1",
        )
        for rank in range(3)
    ]  # fmt: skip
    with forked(SCRIPT, ranks, str(victim), str(seconds)) as started:
        ended = [process.wait() for process in started]
    for rank, (status, out, err) in enumerate(ended):
        assert status == (-signal.SIGKILL if rank == victim else 3), out + err
        assert rank == victim or f"rank {victim}" in out
    assert in_shared_memory() <= before
