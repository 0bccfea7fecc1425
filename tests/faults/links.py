"""Faults of hosts that are network namespaces: their links, and all of their processes at once.

The kernel here has no netem. A slow link is a token bucket (tbf) in both directions; a lossy one is down for some
hundredths of a second, again and again, and loses what is sent meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time

from launching import marked
from namespaces import Hosts

LETTERS = "ab"
RATE = "400kbit"


def _run(command: str, *, check: bool = True) -> None:
    subprocess.run(command.split(), check=check, capture_output=True, timeout=10)


def cut(hosts: Hosts, number: int) -> None:
    _run(f"ip -n {hosts.prefix}d link set to-{LETTERS[number]} down")


def join(hosts: Hosts, number: int) -> None:
    _run(f"ip -n {hosts.prefix}d link set to-{LETTERS[number]} up")


def slow(hosts: Hosts, number: int, seconds: float) -> None:
    """Make the link of a host slow for some seconds."""
    letter = LETTERS[number]
    ends = [f"{hosts.prefix}d qdisc {{}} dev to-{letter}", f"{hosts.prefix}{letter} qdisc {{}} dev net0"]
    for end in ends:
        _run(f"tc -n {end.format('replace')} root tbf rate {RATE} burst 3kb latency 500ms")
    time.sleep(seconds)
    for end in ends:
        _run(f"tc -n {end.format('del')} root", check=False)


def lose_packets(hosts: Hosts, number: int, seconds: float, seed: int) -> None:
    """Let the link of a host lose a part of what is sent, for some seconds."""
    chance, end = random.Random(seed), time.monotonic() + seconds
    while time.monotonic() < end:
        cut(hosts, number)
        time.sleep(chance.uniform(0.01, 0.05))
        join(hosts, number)
        time.sleep(chance.uniform(0.05, 0.15))


def crash(hosts: Hosts, number: int, mark: str) -> None:
    """Kill all processes of a job on a host at once: its agent and its workers."""
    own = os.stat(f"/run/netns/{hosts.prefix}{LETTERS[number]}").st_ino
    for pid in sorted(marked(mark)):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{pid}/ns/net").st_ino == own:
                os.kill(pid, signal.SIGKILL)
