"""Hosts and the ranks of their slots, as ``horovod.runner.common.util.hosts``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rueda.hvd.launching import worker_variables
from rueda.world.launch import Host, read_hostfile, take_slots
from rueda.world.launch import parse_hosts as _parse_hosts


@dataclass(frozen=True)
class HostInfo:
    """A host and the number of its slots."""

    hostname: str
    slots: int

    @staticmethod
    def from_string(host_string: str) -> HostInfo:
        """Read ``server1:4``."""
        return parse_hosts(host_string)[0]


@dataclass(frozen=True)
class SlotInfo:
    """The ranks and sizes of one worker."""

    hostname: str
    rank: int
    local_rank: int
    cross_rank: int
    size: int
    local_size: int
    cross_size: int

    def to_response_string(self) -> str:
        """Return the six numbers, separated by commas."""
        numbers = (self.rank, self.size, self.local_rank, self.local_size, self.cross_rank, self.cross_size)
        return ",".join(map(str, numbers))


def parse_hosts(hosts_string: str) -> list[HostInfo]:
    """Read a list of hosts.

    >>> parse_hosts("server1:2,server2:4")
    [HostInfo(hostname='server1', slots=2), HostInfo(hostname='server2', slots=4)]
    """
    return [HostInfo(host.name, host.slots) for host in _parse_hosts(hosts_string, slots=1)]


def parse_host_files(filename: str | Path) -> str:
    """Read a host file and return its hosts as ``server1:2,server2:4``."""
    return ",".join(f"{host.name}:{host.slots}" for host in read_hostfile(filename, slots=1))


def get_host_assignments(hosts: list[HostInfo], min_num_proc: int, max_num_proc: int | None = None) -> list[SlotInfo]:
    """Return the ranks and sizes of the workers, host by host.

    Args:
        hosts: the hosts in rank order.
        min_num_proc: the number of workers; a LaunchError is raised if the hosts have fewer slots.
        max_num_proc: the largest number of workers where the hosts have more slots; None: ``min_num_proc``.

    >>> [(slot.hostname, slot.rank, slot.local_rank) for slot in get_host_assignments(parse_hosts("a:2,b:2"), 3)]
    [('a', 0, 0), ('a', 1, 1), ('b', 2, 0)]
    """
    wanted = max(min_num_proc, min(max_num_proc or min_num_proc, sum(host.slots for host in hosts)))
    taken = take_slots([Host(name=host.hostname, slots=host.slots) for host in hosts], wanted)
    slots: list[SlotInfo] = []
    for node, host in enumerate(taken):
        for local_rank in range(host.slots):
            found = worker_variables(taken, node, local_rank, len(slots))
            names = ("RANK", "LOCAL_RANK", "CROSS_RANK", "SIZE", "LOCAL_SIZE", "CROSS_SIZE")
            slots.append(SlotInfo(host.name, *(int(found[f"HOROVOD_{name}"]) for name in names)))
    return slots
