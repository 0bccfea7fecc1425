"""Signals to a job of somebody's own script: every process of it may get them, and what it saves is kept."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import pytest

from rueda.world.launch.grace import time_to_save
from rueda.world.launch.processes import catches

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes in /proc")

SAVES_AT_EXIT = """
import os, signal, sys, time
rank = os.environ["RANK"]
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # a repeat would interrupt what follows `finally`
try:
    print("ready", flush=True)
    time.sleep(300)
finally:
    time.sleep(6)
    print("saved", rank, flush=True)
"""


def test_sigterm_to_every_process_lets_a_slow_script_save(launcher: Any) -> None:
    """As scancel and systemd send it: to the launcher, the agent and the workers at once."""
    launch = launcher.start("-np", "2", launcher.script(SAVES_AT_EXIT))
    for _ in range(2):
        launch.wait_for_line("ready")
    launch.signal_all(signal.SIGTERM)
    status, out, err = launch.end()
    assert status == 143 and "saved 0" in out and "saved 1" in out, err
    assert "Traceback" not in err and launch.left() == []


SAVES_AND_GOES_ON = """
import os, signal, sys, time
rank = os.environ["RANK"]
def save(number, frame):
    print(rank, signal.Signals(number).name, flush=True)
    if number == signal.SIGUSR2:
        sys.exit(0)
    if number == signal.SIGTERM:
        sys.exit(1)
if rank == "0":
    signal.signal(signal.SIGUSR1, save)
    signal.signal(signal.SIGUSR2, save)
else:
    signal.signal(signal.SIGTERM, save)  # SIGUSR1 or SIGUSR2 would kill it
print("ready", flush=True)
while True:
    time.sleep(0.1)
"""


def test_sigusr1_saves_and_goes_on_and_sigusr2_stops_to_be_requeued(launcher: Any) -> None:
    launch = launcher.start("-np", "2", launcher.script(SAVES_AND_GOES_ON))
    for _ in range(2):
        launch.wait_for_line("ready")
    for _ in range(2):  # repeats are one signal
        launch.process.send_signal(signal.SIGUSR1)
    launch.wait_for_line("0 SIGUSR1")
    time.sleep(0.5)
    assert launch.process.poll() is None
    launch.process.send_signal(signal.SIGUSR2)
    status, out, err = launch.end()
    assert status == 75, err
    assert sorted(out.split("\n")) == ["", "[0] 0 SIGUSR2", "[1] 1 SIGTERM"]  # rank 1 does not handle SIGUSR2


STUBBORN = """
import os, signal, time
if os.environ["RANK"] == "1":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(300)
"""


def test_the_end_of_the_grace_is_told(launcher: Any) -> None:
    launch = launcher.start("-np", "2", "--grace", "0.5", launcher.script(STUBBORN))
    for _ in range(2):
        launch.wait_for_line("ready")
    launch.process.send_signal(signal.SIGTERM)
    status, _, lines = launch.end_quietly()
    assert status == 143
    assert lines == ["rueda: rank 1 had not ended 0.5 s after SIGTERM and was killed; give more time with --grace"]


def test_a_second_ctrl_c_of_a_person_hurries_and_a_repeat_does_not(launcher: Any) -> None:
    stubborn = STUBBORN.replace("SIGTERM", "SIGINT")
    launch = launcher.start("-np", "2", launcher.script(stubborn), command=["env", *launcher.rueda])
    for _ in range(2):
        launch.wait_for_line("ready")
    for _ in range(3):
        launch.process.send_signal(signal.SIGINT)
        time.sleep(0.02)  # together well within a second
    time.sleep(1.5)
    assert launch.process.poll() is None
    launch.process.send_signal(signal.SIGTERM)  # of a scheduler: no reason to hurry
    time.sleep(0.5)
    assert launch.process.poll() is None
    launch.process.send_signal(signal.SIGINT)
    assert launch.end()[0] == 130 and launch.left() == []


FLOODS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
open("began-" + os.environ["RANK"], "w").close()
try:
    while True:
        print("x" * 1000)
finally:
    open("saved-" + os.environ["RANK"], "w").close()
"""


def test_a_reader_that_stalls_does_not_make_the_launcher_deaf(launcher: Any) -> None:
    launch = launcher.start("-np", "2", launcher.script(FLOODS))
    deadline = time.monotonic() + 120
    while len(list(launcher.folder.glob("began-*"))) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    launch.wait_until_output_is_full()
    time.sleep(0.5)  # by now the buffers of the launcher are full, too
    launch.process.send_signal(signal.SIGTERM)
    assert launch.process.wait(60) == 143
    assert len(list(launcher.folder.glob("saved-*"))) == 2 and launch.left() == []


def test_which_signals_a_process_handles() -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        assert catches(os.getpid(), signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        assert catches(os.getpid(), signal.SIGUSR1) is False
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert catches(2**22 + 1, signal.SIGTERM) is False  # no such process


def test_slurms_own_limit_is_respected(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho 'KillOnBadExit = 0'; echo 'KillWait                = 20 sec'\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    job = {"SLURM_JOB_ID": "7"}
    assert time_to_save(signal.SIGTERM, job) == 18
    assert time_to_save(signal.SIGTERM, {**job, "RUEDA_GRACE": "5"}) == 5
    assert time_to_save(signal.SIGUSR2, job) == 30  # Slurm kills only later, at the time limit
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert time_to_save(signal.SIGTERM, job) == 30
