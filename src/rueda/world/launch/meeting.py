"""By which address hosts reach each other.

A host has many names: the one that the user typed may be an alias of the driver's ssh configuration, and the host's
own name often stands for 127.0.1.1. So the first host offers all that it knows, and each other host takes the
first that it can connect to. The same connection tells which network card leads there; Gloo is told to use it, since
by default it asks the host's own name.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable, Mapping

from rueda.world.network import interfaces, is_loopback, reachable_addresses


def card_of(address: str) -> str | None:
    """Give the network card that has this address, if it leads to other hosts.

    >>> card_of("127.0.0.1") is None
    True
    """
    if is_loopback(address):
        return None
    return next((name for name, own in interfaces().items() if own == address), None)


def own_addresses(environ: Mapping[str, str]) -> list[str]:
    """List the addresses by which others may reach this host, the likeliest first."""
    by_ssh = environ.get("SSH_CONNECTION", "").split()  # client address, its port, own address, own port
    return [*by_ssh[2:3], *reversed(reachable_addresses())]


def driver_address(environ: Mapping[str, str]) -> list[str]:
    """Give the address from which ssh came: the driver's, as seen from this host.

    >>> driver_address({"SSH_CONNECTION": "10.0.0.9 51234 10.0.0.2 22"})
    ['10.0.0.9']
    """
    return environ.get("SSH_CONNECTION", "").split()[:1]


def reach(addresses: Iterable[str], port: int, *, seconds: float = 3.0) -> tuple[str, str] | None:
    """Connect to the first address that answers; give it as a number, and the own address towards it."""
    for address in dict.fromkeys(addresses):
        with contextlib.suppress(OSError, UnicodeError), socket.create_connection((address, port), seconds) as link:
            return str(link.getpeername()[0]), str(link.getsockname()[0])
    return None
