"""Waiting for threads: a busy one is waited for, a sleeping one is not."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from rueda.world.idle_threads import wait_for_idle_threads


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_a_busy_thread_is_waited_for() -> None:
    assert wait_for_idle_threads(5.0)
    done = threading.Event()

    def work() -> None:
        end = time.monotonic() + 0.3
        matrix = torch.rand(300, 300)
        while time.monotonic() < end:
            matrix @ matrix  # outside Python's lock
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert wait_for_idle_threads(10.0) and done.is_set()
    thread.join()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_a_sleeping_thread_is_not_and_patience_ends() -> None:
    wake = threading.Event()
    thread = threading.Thread(target=wake.wait)
    thread.start()
    begun = time.monotonic()
    assert wait_for_idle_threads(10.0) and time.monotonic() - begun < 5
    wake.set()
    thread.join()
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            torch.rand(200, 200) @ torch.rand(200, 200)

    thread = threading.Thread(target=spin)
    thread.start()
    time.sleep(0.05)
    assert not wait_for_idle_threads(0.2)
    stop.set()
    thread.join()


_ADOPTED = """
import threading, time
import torch, torch.distributed as dist
import rueda

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
rueda.init()

def work():
    end = time.monotonic() + 0.3
    matrix = torch.rand(300, 300)
    while time.monotonic() < end:
        matrix @ matrix
    open("done", "w").close()

threading.Thread(target=work, daemon=True).start()  # as Gloo's threads, which Python does not wait for
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_a_process_whose_group_is_not_ours_waits_at_its_end(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", _ADOPTED], cwd=tmp_path, check=True, timeout=120)
    assert (tmp_path / "done").exists()
