"""Ports for servers and stores that a test starts."""

from __future__ import annotations

import socket


def free_port() -> str:
    """Return a port of the loopback interface that the system has just chosen, so that nobody else gets it soon."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])
