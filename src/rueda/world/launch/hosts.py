"""The hosts of a job, and the number of workers on each.

Ranks follow the order of the hosts: with ``server1:4,server2:2`` ranks 0 to 3 run on server1, ranks 4 and 5 on server2.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rueda.errors import LaunchError
from rueda.files.text import read_text

# A destination of ssh: a name, an address, user@name. Without a leading dash, which would make it an option of ssh.
_NAME = re.compile(r"(?:[A-Za-z0-9_][\w.+-]*@)?(?:[A-Za-z0-9_][\w.-]*|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]+(?:%\w+)?)", re.ASCII)
_ENTRY = re.compile(r"(?:\[(?P<bracketed>[^\]]*)\]|(?P<plain>[^\s:]*))(?::(?P<slots>.*))?")
_LOCAL = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, kw_only=True)
class Host:
    """A machine and the number of workers that may run on it.

    Args:
        name: a destination of ssh: a host name, an alias of the ssh configuration, an address, ``user@name``.
        slots: the number of workers that may run there.
    """

    name: str
    slots: int = 1

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise LaunchError("a host", expected="a name or an address such as server1", got=self.name, do="correct it")
        if self.slots < 1:
            raise LaunchError(
                f"the slots of host {self.name}", expected="1 or more", got=self.slots, do="write it as server1:4"
            )

    @property
    def is_local(self) -> bool:
        """Whether the host is this machine, for which ssh is not used."""
        own = socket.gethostname()
        return self.name in _LOCAL or self.name.lower() in (own.lower(), own.split(".")[0].lower())


def parse_hosts(text: str, *, slots: int = 1) -> list[Host]:
    """Parse ``-H``: hosts with their slots, separated by commas; ``slots`` is the default for hosts without a number.

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
    """Read a host file: one host per line, as ``server1 slots=4`` or ``server1:4``; ``#`` begins a comment."""
    try:
        lines = read_text(path).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not a text file"
        raise LaunchError(f"host file {path}: cannot be read ({reason}); give a readable file to --hostfile") from None
    return _distinct(parse_host_lines(lines, slots=slots))


def parse_host_lines(lines: Iterable[str], *, slots: int = 1) -> list[Host]:
    """Parse lines with one host each, as in a host file; there may be none.

    >>> parse_host_lines(["server1 slots=4", "server2:2  # slower", ""])
    [Host(name='server1', slots=4), Host(name='server2', slots=2)]
    """
    entries = (line.split("#", 1)[0].strip() for line in lines)
    hosts = [_entry(entry, slots) for entry in entries if entry]
    return _distinct(hosts) if hosts else []


def _entry(text: str, default: int) -> Host:
    words = text.split()
    match = _ENTRY.fullmatch(words[0]) if words else None
    slots = match["slots"] if match else None
    for word in words[1:]:
        key, _, value = word.partition("=")
        if key == "slots":
            slots = value
        elif key not in ("max_slots", "max-slots"):  # allowed in host files of Open MPI
            match = None
    if match is None or (slots is not None and not re.fullmatch(r"[0-9]+", slots)):
        raise LaunchError("a host", expected="server1:4 or server1 slots=4", got=text, do="correct it")
    name = match["bracketed"] if match["bracketed"] is not None else match["plain"]
    return Host(name=name, slots=default if slots is None else int(slots))


def _distinct(hosts: list[Host]) -> list[Host]:
    names = ["localhost" if host.is_local else host.name for host in hosts]
    if twice := [name for name in names if names.count(name) > 1]:
        raise LaunchError(f"host {twice[0]} is listed twice; list it once, with all its slots")
    if not hosts:
        raise LaunchError("the list of hosts is empty; name at least one, such as server1:4")
    return hosts


def take_slots(hosts: Sequence[Host], workers: int | None) -> list[Host]:
    """Return the hosts with the first ``workers`` slots, or all slots if ``workers`` is None.

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
        listed = ",".join(f"{host.name}:{host.slots}" for host in hosts)
        do = "add hosts or slots, or lower -np"
        raise LaunchError("-np", expected=f"at most {total}, the slots of {listed}", got=wanted, do=do)
    taken: list[Host] = []
    for host in hosts:
        if wanted > 0:
            taken.append(Host(name=host.name, slots=min(host.slots, wanted)))
            wanted -= host.slots
    return taken
