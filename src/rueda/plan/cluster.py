"""A cluster: its devices, the links between them, and its price. :mod:`rueda.plan.cluster_files` reads it from TOML."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from rueda.errors import ProfileError, suggest
from rueda.plan.failures import FailureModel
from rueda.plan.roofline import DevicePeaks
from rueda.records.profile import Communication, Profile

DEVICE_JITTER = 0.015
"""standard deviation of the speed among devices of the same model. Sinha et al. 2022 (2208.11035) find 8 % between the
whiskers of a box plot, on average over five clusters; between whiskers lie 5.4 standard deviations of a normal
distribution."""

THIS_MACHINE = "this-machine"

LIBRARIES = {
    "nccl": ("ring", "tree"),
    "gloo": ("ring",),
    "caffe2": ("ring", "halving-doubling"),
    "mpi": ("ring", "halving-doubling"),
}
"""The all-reduce algorithms of each library (:mod:`rueda.plan.collectives`), of which the fastest counts: NCCL from 2.4
on; Gloo as torch calls it; Gloo as Caffe2 called it, which Goyal et al. 2017 used; MPI (Thakur et al. 2005)."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """A link: seconds per hop, and bytes per second in each direction."""

    latency: float
    bandwidth: float
    efficiency: float = 1.0
    """fraction of the bandwidth that an all-reduce gets"""

    def __post_init__(self) -> None:
        if not (0 <= self.latency < inf and 0 < self.bandwidth < inf and 0 < self.efficiency <= 1):
            got, do = f"{self.latency}, {self.bandwidth}, {self.efficiency}", "correct the cluster"
            raise ProfileError("link", expected="latency >= 0, bandwidth > 0, 0 < efficiency <= 1", got=got, do=do)

    @property
    def usable(self) -> float:
        """Bytes per second that an all-reduce gets."""
        return self.bandwidth * self.efficiency


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The machines that a plan is for; the values are validated on construction."""

    name: str
    title: str = ""
    devices_per_node: int
    max_nodes: int | None = None
    """the number of nodes; None: no limit"""
    inside: Link | None = None
    """the link of each device to the other devices of its node"""
    between: Link | None = None
    """the link of each node to the other nodes"""
    device: str = ""
    speed: float | None = None
    """speed of a device relative to the profiled one; None: not known, so the plan uses the roofline, or else assumes 1
    and says so"""
    peaks: DevicePeaks | None = None
    """the peaks of a device, for its roofline; None: not known"""
    memory: float | None = None
    """bytes of memory of a device; None: not known, or that of the profiled device"""
    jitter: float = DEVICE_JITTER
    """standard deviation of the step time among devices, as a fraction of a step"""
    library: str = "nccl"
    """the library that runs the all-reduces, one of :data:`LIBRARIES`"""
    cycle: float = 0.0
    """seconds between two checks for gradients to send, as Horovod's cycle time; 0: they are sent at once"""
    price_per_hour: float | None = None
    """per node"""
    currency: str = "USD"
    failures: FailureModel | None = None
    """how often its nodes fail, and how long an interruption takes; None: a plan takes a published rate"""
    sources: tuple[str, ...] = ()
    approximate: tuple[str, ...] = ()
    """the fields whose values are rough"""
    profile: Profile | None = None
    """a profile measured on a device of this cluster, used instead of the given one"""
    measured: tuple[Communication, ...] = ()
    """the all-reduces measured on this machine"""
    contention: float = 1.0
    """how many times longer a device computes while all devices of its node compute"""
    is_profiled: bool = False
    """whether this is the profiled machine, so that the profile's own spread and overlap hold"""

    def __post_init__(self) -> None:
        if self.library not in LIBRARIES:
            expected, do = f"one of {', '.join(LIBRARIES)}", suggest(self.library, LIBRARIES, "choose one")
            raise ProfileError(f"{self.name}: library", expected=expected, got=self.library, do=do)
        for name in ("devices_per_node", "max_nodes", "speed", "contention", "memory"):
            value = getattr(self, name)
            if value is not None and not 0 < value < inf:
                expected = "more than 0 and finite"
                raise ProfileError(f"{self.name}: {name}", expected=expected, got=value, do="correct it")
        for name in ("jitter", "cycle", "price_per_hour"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < inf:
                raise ProfileError(f"{self.name}: {name}", expected="0 or more and finite", got=value, do="correct it")

    def nodes(self, workers: int) -> int:
        """Return how many nodes the workers need, at most ``max_nodes``; further workers share their devices."""
        nodes = -(-workers // self.devices_per_node)
        return nodes if self.max_nodes is None else min(nodes, self.max_nodes)

    def link(self, name: str) -> Link:
        """Return a link that a collective needs.

        Raises:
            ProfileError: the cluster has no such link.
        """
        found: Link | None = getattr(self, name)
        if found is None:
            where = "between the devices of a node" if name == "inside" else "between nodes"
            do = f"add [{name}] with bandwidth and latency"
            if self.is_profiled:
                do = "measure it (`rueda measure TASK --workers 2`, or measure_communication() in your own loop)"
            raise ProfileError(f"{self.name}: expected a link {where}, got none; {do}")
        return found


def this_machine(profile: Profile) -> Cluster:
    """Describe the profiled machine as a cluster of one node, with its measured links and contention.

    A measured all-reduce among n workers, latency + bytes / bandwidth, is converted into the link of a ring of n
    workers (2 (n - 1) hops, 2 (n - 1) / n of the bytes), which predicts other numbers of workers. For numbers of
    workers that were measured, predictions use the measurement itself.
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
        library="gloo" if profile.device.startswith("cpu") else "nccl", measured=tuple(links), is_profiled=True,
        contention=contention or profile.contention or 1.0,
        sources=("measured by `rueda measure`",),
    )  # fmt: skip
