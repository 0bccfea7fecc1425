"""Which address of this machine can the others reach, and which interface is it on?

Gloo asks the host name for its address, and on many machines that is ``127.0.1.1``: workers on other hosts
then never connect. The interface is chosen here by the route that packets really take.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import sys

_SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface


def interfaces() -> dict[str, str]:
    """Give the IPv4 address of each interface that has one, by name (Linux; empty elsewhere)."""
    found: dict[str, str] = {}
    if not sys.platform.startswith("linux"):
        return found
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # no IPv4 address there
                continue
            found[name] = socket.inet_ntoa(answer[20:24])
    return found


def own_address_towards(host: str) -> str | None:
    """Give this machine's address on the route to ``host``; nothing is sent.

    >>> own_address_towards("127.0.0.1")
    '127.0.0.1'
    """
    try:
        family, _, _, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # a UDP connect only asks the routing table
            return str(probe.getsockname()[0])
    except OSError:
        return None


def is_loopback(address: str) -> bool:
    """Say whether an address never leaves the machine."""
    return address.startswith("127.") or address == "::1"


def reachable_addresses() -> list[str]:
    """List the addresses at which other machines may reach this one, host name first."""
    own = [address for address in interfaces().values() if not is_loopback(address)]
    return [socket.gethostname(), *own]
