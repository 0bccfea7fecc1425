"""The addresses at which other machines reach this one, and their network interfaces.

By default Gloo resolves the host name, and on many machines the result is ``127.0.1.1``, to which workers on other
hosts cannot connect. Here the interface is chosen by the route to the other machines.
"""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import sys
from collections.abc import Iterable, Mapping, MutableMapping

_SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface

# The address of the first host in the environment of workers; MASTER_ADDR is that of the relay (rueda.world.relay).
FIRST_ADDRESS = "RUEDA_FIRST_ADDRESS"


def interfaces() -> dict[str, str]:
    """Return the IPv4 addresses of the network interfaces by name (Linux; empty elsewhere)."""
    found: dict[str, str] = {}
    if not sys.platform.startswith("linux"):
        return found
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # this interface has no IPv4 address
                continue
            found[name] = socket.inet_ntoa(answer[20:24])
    return found


def own_address_towards(host: str) -> str | None:
    """Return this machine's address on the route to ``host``, without sending a packet.

    >>> own_address_towards("127.0.0.1")
    '127.0.0.1'
    """
    try:
        family, _, _, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # connecting a UDP socket only consults the routing table
            return str(probe.getsockname()[0])
    except OSError:
        return None


def is_loopback(address: str) -> bool:
    """Return whether an address is a loopback address, or the usual name of one."""
    return address.startswith("127.") or address in ("::1", "localhost")


def stay_on_loopback(environ: MutableMapping[str, str]) -> None:
    """Let Gloo and NCCL of a job on one host use its loopback interface, unless the user has chosen another."""
    names = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]  # Linux, macOS
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if names else ():
        environ.setdefault(variable, names[0])


def exchange_at_once(environ: MutableMapping[str, str]) -> None:
    """Let each Gloo rank read all addresses in one operation of the store: the relay is slower than the store itself.

    By default each of N ranks reads N keys one by one, 1,048,576 at 1,024 ranks. With 128 ranks behind a relay it takes
    1.0 s in place of 4.3 s (and 1.6 s of a store without relay).
    """
    environ.setdefault("GLOO_ENABLE_STORE_V2_API", "1")


def interface_address(environ: Mapping[str, str]) -> str | None:
    """Return this machine's address on the interface that Gloo uses, if it is known."""
    return interfaces().get(environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0])


def chosen_address(environ: Mapping[str, str]) -> str | None:
    """Return this machine's address on the interface that Gloo uses between hosts, if that is known."""
    address = interface_address(environ)
    return None if address is None or is_loopback(address) else address


def listen(addresses: Iterable[str], port: int = 0) -> list[socket.socket]:
    """Listen on some of this machine's addresses, of either family, on one port; an empty address stands for all.

    The port is shared among sockets of the same user, so that a program can listen on fewer addresses without a gap.

    Raises:
        OSError: the port is in use, or an address is not this machine's own.
    """
    with contextlib.ExitStack() as opened:
        listeners: list[socket.socket] = []
        for address in dict.fromkeys(addresses):
            dual = not address and socket.has_dualstack_ipv6()
            listener = socket.create_server(
                (address, port), family=socket.AF_INET6 if dual or ":" in address else socket.AF_INET,
                backlog=1024, reuse_port=True, dualstack_ipv6=dual,
            )  # fmt: skip
            listeners.append(opened.enter_context(listener))
            port = listener.getsockname()[1]
        opened.pop_all()  # no error: they stay open
    return listeners


def keep_alive(connection: socket.socket) -> None:
    """Let the kernel close a connection whose other host has vanished, after two minutes of silence."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        with contextlib.suppress(AttributeError, OSError):  # not on every system
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def reachable_addresses() -> list[str]:
    """Return the host name and the addresses at which other machines may reach this one."""
    own = [address for address in interfaces().values() if not is_loopback(address)]
    return [socket.gethostname(), *own]
