"""The program that lists the hosts of an elastic job, when it does not do what it should."""

from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path

import pytest

from rueda.errors import LaunchError
from rueda.world.launch.elastic_job.discovery import Discovery, discover
from rueda.world.launch.hosts import Host

BAD = [
    (r"printf '\377\376'", "printed what is not text"),
    ("echo no hosts found", "must print one host per line; a host: expected server1:4 or server1 slots=4"),
    ("echo a:1; echo a:2", "must print one host per line; host a is listed twice"),
    ("echo no answer from the cloud >&2; exit 3", r"named no host \(exit status 3: no answer from the cloud\)"),
]


def program(folder: Path, body: str) -> str:
    path = folder / "new"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path.rename(folder / "list"))


@pytest.mark.parametrize(("body", "says"), BAD)
def test_what_names_no_hosts_is_one_line(body: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=says):
        discover(program(tmp_path, body))


def test_lines_are_those_of_a_host_file(tmp_path: Path) -> None:
    body = "echo 'a slots=4  # rented'; echo; echo b:2; echo c"
    assert discover(program(tmp_path, body), slots=3) == [
        Host(name=name, slots=n) for name, n in (("a", 4), ("b", 2), ("c", 3))
    ]
    assert discover(program(tmp_path, "")) == []


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def hanging(folder: Path) -> str:
    """Return a program that waits for a process of its own, whose number is then in the file `waits`."""
    return program(folder, f"sleep 600 & echo $! > {folder}/pid; mv {folder}/pid {folder}/waits; wait")


def test_a_program_that_hangs_is_killed_with_what_it_started(tmp_path: Path) -> None:
    started: list[subprocess.Popen[bytes]] = []
    with pytest.raises(LaunchError, match="did not end within 1 s"):
        discover(hanging(tmp_path), seconds=1.0, started=started.append)
    assert started[0].returncode is not None
    if (tmp_path / "waits").exists():  # else the machine was too slow to start it
        assert gone(int((tmp_path / "waits").read_text()))


def test_a_job_that_ends_ends_the_program_too(tmp_path: Path) -> None:
    discovery = Discovery(hanging(tmp_path), slots=1, seconds=600.0, changed=lambda hosts: None)
    deadline = time.monotonic() + 60
    while not (tmp_path / "waits").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    discovery.stop()
    assert gone(int((tmp_path / "waits").read_text()))


def test_after_rubbish_the_program_is_asked_again(tmp_path: Path) -> None:
    found: list[list[Host]] = []
    came = threading.Event()

    def changed(hosts: list[Host]) -> None:
        found.append(hosts)
        came.set()

    script = program(tmp_path, r"printf '\377\376'")
    discovery = Discovery(script, slots=1, seconds=60.0, changed=changed)
    deadline = time.monotonic() + 60
    while discovery.error is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    program(tmp_path, "echo a:2")
    assert came.wait(60)
    discovery.stop()
    assert found == [[Host(name="a", slots=2)]]
