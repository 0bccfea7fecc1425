"""The cluster: devices, the links between them, and the price. As a file: :mod:`rueda.plan.cluster_files`."""

from __future__ import annotations

from dataclasses import dataclass

from rueda.errors import ProfileError
from rueda.records.profile import Communication, Profile

DEVICE_JITTER = 0.015
"""standard deviation of the speed of devices of one kind. Sinha et al. 2022 (2208.11035) find 8 % between the whiskers
of a box plot, on average over five clusters; between whiskers lie 5.4 standard deviations of a normal distribution."""

THIS_MACHINE = "this-machine"


@dataclass(frozen=True, kw_only=True)
class Link:
    """A link: seconds of one hop, and bytes a second each way."""

    latency: float
    bandwidth: float
    efficiency: float = 1.0
    """share of the bandwidth that an all-reduce gets"""

    def __post_init__(self) -> None:
        if not (self.latency >= 0 and self.bandwidth > 0 and 0 < self.efficiency <= 1):
            raise ProfileError(
                "link",
                expected="latency >= 0, bandwidth > 0 and 0 < efficiency <= 1",
                got=f"{self.latency}, {self.bandwidth}, {self.efficiency}",
                do="correct the cluster",
            )

    @property
    def usable(self) -> float:
        """Bytes a second that an all-reduce gets."""
        return self.bandwidth * self.efficiency


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """What a plan knows about the machines: validated when made."""

    name: str
    title: str = ""
    devices_per_node: int
    max_nodes: int | None = None
    """how many nodes there are; None: as many as one pays for"""
    inside: Link | None = None
    """between the devices of a node, for each device"""
    between: Link | None = None
    """between nodes, for each node"""
    device: str = ""
    speed: float | None = None
    """of a device, against the profiled one; None: not known, taken as 1 and said"""
    jitter: float = DEVICE_JITTER
    """standard deviation of step times between devices, as a fraction of a step"""
    cycle: float = 0.0
    """seconds between the moments at which the software looks for gradients to send (Horovod's cycle; 0: at once)"""
    price_per_hour: float | None = None
    """of a node"""
    currency: str = "USD"
    sources: tuple[str, ...] = ()
    approximate: tuple[str, ...] = ()
    """fields whose figures are rough"""
    profile: Profile | None = None
    """a profile of this cluster's own device, used instead of the given one"""
    measured: tuple[Communication, ...] = ()
    """all-reduces that were measured on this very machine"""
    contention: float = 1.0
    """how much slower a device computes while all of its node do"""
    is_profiled: bool = False
    """this is the machine of the profile: its own spread and overlap hold"""

    def __post_init__(self) -> None:
        for name in ("devices_per_node", "max_nodes", "speed", "contention"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ProfileError(f"{self.name}: {name}", expected="more than 0", got=value, do="correct it")
        for name in ("jitter", "cycle", "price_per_hour"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ProfileError(f"{self.name}: {name}", expected="0 or more", got=value, do="correct it")

    def nodes(self, workers: int) -> int:
        """How many nodes some workers take; on a machine that cannot grow they share it."""
        nodes = -(-workers // self.devices_per_node)
        return nodes if self.max_nodes is None else min(nodes, self.max_nodes)

    def link(self, name: str) -> Link:
        """Give a link that an exchange needs, or say in a line that the cluster lacks it."""
        found: Link | None = getattr(self, name)
        if found is None:
            where = "between the devices of a node" if name == "inside" else "between nodes"
            do = (
                "measure it: `rueda measure TASK --workers 2`"
                if self.is_profiled
                else f"add [{name}] with bandwidth and latency"
            )
            raise ProfileError(f"{self.name}: expected a link {where}, got none; {do}")
        return found


def this_machine(profile: Profile) -> Cluster:
    """Make a cluster of the machine that was profiled: its measured links, its contention, one node.

    A measured all-reduce among n workers, latency + bytes / bandwidth, is turned into the link of a ring among them
    (2 (n - 1) hops, 2 (n - 1) / n of the bytes), so that other numbers of workers follow. Where as many workers were
    measured, the prediction takes what was measured itself.
    """
    links = sorted(profile.communication, key=lambda one: one.workers)
    inside = None
    if links:
        hops = 2 * (links[-1].workers - 1)
        inside = Link(latency=links[-1].latency / hops, bandwidth=links[-1].bandwidth * hops / links[-1].workers)
    most = max(profile.together, key=lambda one: one.workers, default=None)
    contention = None if most is None else most.contention(profile.steps)
    groups = [*(one.workers for one in links), *(one.workers for one in profile.together)]
    return Cluster(
        name=THIS_MACHINE, title=f"the profiled machine: {profile.device}", device=profile.device,
        devices_per_node=max(groups, default=1), max_nodes=1, inside=inside, speed=1.0, jitter=0.0,
        measured=tuple(links), contention=contention or profile.contention or 1.0, is_profiled=True,
        sources=("measured by `rueda measure`",),
    )  # fmt: skip
