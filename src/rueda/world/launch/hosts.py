"""Which hosts, and how many workers on each.

Ranks follow the order of the hosts: with ``server1:4,server2:2`` the ranks 0 to 3 run on server1, 4 and 5 on server2.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rueda.errors import LaunchError

# What ssh takes as a destination: a name, an address, user@name. No leading dash: ssh would read an option.
_NAME = re.compile(r"(?:[A-Za-z0-9_][\w.+-]*@)?(?:[A-Za-z0-9_][\w.-]*|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]+(?:%\w+)?)", re.ASCII)
_ENTRY = re.compile(r"(?:\[(?P<bracketed>[^\]]*)\]|(?P<plain>[^\s:]*))(?::(?P<slots>.*))?")
_LOCAL = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, kw_only=True)
class Host:
    """A machine and the number of workers it takes.

    Args:
        name: what ssh takes: a host name, an alias of the ssh configuration, an address, ``user@name``.
        slots: how many workers may run there.
    """

    name: str
    slots: int = 1

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise LaunchError(
                "a host",
                expected="a name or an address such as server1",
                got=self.name,
                do="correct -H or the host file",
            )
        if self.slots < 1:
            raise LaunchError(
                f"the slots of host {self.name}",
                expected="a whole number from 1",
                got=self.slots,
                do="write, for example, server1:4",
            )

    @property
    def is_local(self) -> bool:
        """Whether the host is this machine, which needs no ssh."""
        own = socket.gethostname()
        return self.name in _LOCAL or self.name.lower() in (own.lower(), own.split(".")[0].lower())


def parse_hosts(text: str, *, slots: int = 1) -> list[Host]:
    """Read ``-H``: hosts with their slots, separated by commas; ``slots`` is for those that name none.

    >>> parse_hosts("server1:4,ada@server2")
    [Host(name='server1', slots=4), Host(name='ada@server2', slots=1)]
    >>> parse_hosts("[fe80::1]:2")
    [Host(name='fe80::1', slots=2)]
    >>> parse_hosts("-oProxyCommand=x:1")
    Traceback (most recent call last):
    rueda.errors.LaunchError: a host: expected a name or an address such as server1, got '-oProxyCommand=x'; ...
    """
    return _distinct([_entry(part.strip(), slots) for part in text.split(",")])


def read_hostfile(path: str | Path, *, slots: int = 1) -> list[Host]:
    """Read a host file: a host a line, as ``server1 slots=4`` or ``server1:4``; ``#`` begins a comment."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise LaunchError(f"host file {path}: cannot be read ({reason}); give a readable file to --hostfile") from None
    entries = (line.split("#", 1)[0].strip() for line in lines)
    return _distinct([_entry(entry, slots) for entry in entries if entry])


def _entry(text: str, default: int) -> Host:
    words = text.split()
    match = _ENTRY.fullmatch(words[0]) if words else None
    slots = match["slots"] if match else None
    for word in words[1:]:
        key, _, value = word.partition("=")
        if key == "slots":
            slots = value
        elif key not in ("max_slots", "max-slots"):  # Open MPI's host files may carry these
            match = None
    if match is None or (slots is not None and not re.fullmatch(r"[0-9]+", slots)):
        raise LaunchError("a host", expected="server1:4 or server1 slots=4", got=text, do="correct -H or the host file")
    name = match["bracketed"] if match["bracketed"] is not None else match["plain"]
    return Host(name=name, slots=default if slots is None else int(slots))


def _distinct(hosts: list[Host]) -> list[Host]:
    seen: set[str] = set()
    for host in hosts:
        key = "localhost" if host.is_local else host.name
        if key in seen:
            raise LaunchError(f"host {host.name} is listed twice; name it once, with all its slots")
        seen.add(key)
    if not hosts:
        raise LaunchError("no host is listed; name at least one, such as server1:4")
    return hosts


def take_slots(hosts: Sequence[Host], workers: int | None) -> list[Host]:
    """Give the first ``workers`` slots to the workers; None takes all slots.

    >>> take_slots(parse_hosts("a:4,b:4,c:4"), 6)
    [Host(name='a', slots=4), Host(name='b', slots=2)]
    >>> take_slots(parse_hosts("a:1,b:1"), 3)
    Traceback (most recent call last):
    rueda.errors.LaunchError: -np: expected at most 2, the slots of a:1,b:1, got 3; add hosts or slots, or lower -np
    """
    total = sum(host.slots for host in hosts)
    wanted = total if workers is None else workers
    if wanted < 1:
        raise LaunchError("-np", expected="a whole number from 1", got=wanted, do="give the number of workers")
    if wanted > total:
        raise LaunchError(
            "-np",
            expected=f"at most {total}, the slots of {_show(hosts)}",
            got=wanted,
            do="add hosts or slots, or lower -np",
        )
    taken: list[Host] = []
    for host in hosts:
        if wanted > 0:
            taken.append(Host(name=host.name, slots=min(host.slots, wanted)))
            wanted -= host.slots
    return taken


def _show(hosts: Iterable[Host]) -> str:
    return ",".join(f"{host.name}:{host.slots}" for host in hosts)
