"""The addresses by which hosts reach each other.

A host has many names: the one that the user typed may be an alias of the driver's ssh configuration, and the host's
own name often resolves to 127.0.1.1. The first host therefore offers all addresses that it knows, and each other host
takes the first one that it can connect to. The same connection shows which network interface leads there; Gloo is told
to use it, since by default it resolves the host's own name.
"""

from __future__ import annotations

from collections.abc import Mapping

from rueda.world.network import interfaces, is_loopback, reachable_addresses


def interface_of(address: str) -> str | None:
    """Return the network interface that has this address, or None for a loopback or foreign address.

    >>> interface_of("127.0.0.1") is None
    True
    """
    if is_loopback(address):
        return None
    return next((name for name, own in interfaces().items() if own == address), None)


def own_addresses(environ: Mapping[str, str]) -> list[str]:
    """Return the addresses by which other hosts may reach this one, the most likely first."""
    by_ssh = environ.get("SSH_CONNECTION", "").split()  # client address, client port, own address, own port
    return [*by_ssh[2:3], *reversed(reachable_addresses())]


def driver_address(environ: Mapping[str, str]) -> list[str]:
    """Return the driver's address as this host sees it, which is the one that the ssh connection came from.

    >>> driver_address({"SSH_CONNECTION": "10.0.0.9 51234 10.0.0.2 22"})
    ['10.0.0.9']
    """
    return environ.get("SSH_CONNECTION", "").split()[:1]
