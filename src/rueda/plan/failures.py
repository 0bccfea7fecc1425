"""How often the nodes of a cluster fail: a model with one rate, and the rates that were published.

Each node that computes fails after a time that is exponentially distributed, independently of the others, whatever its
age. So the first of n nodes fails after 1 / n of a node's mean time between failures (MTBF), and a synchronous
training, which needs all of them, is interrupted as often as that:

    job MTBF = node MTBF / nodes

What the model leaves out: nodes that fail together (a switch, a power supply, a file system), nodes that fail again and
again, failures that grow rarer as a new cluster matures, and those that no node has caused. That this matters, the
sources show themselves: by the rate of its nodes, a job of 1,024 GPUs on RSC-1 would be interrupted every 29 hours;
measured were 7.9 (:data:`PUBLISHED`). Where you have a figure of your own, give it.

What is a failure differs between the sources; all count interruptions of a training by its machines, of which a part
(78 % in Llama 3's training) is confirmed or suspected to be hardware. The rest is taken to leave the node usable.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import inf
from typing import TYPE_CHECKING

from rueda.errors import ProfileError

if TYPE_CHECKING:
    from rueda.plan.cluster import Cluster

HARDWARE = 0.78
"""the share of failures that take a node away: about 78 % of the unexpected interruptions of Llama 3's training were
attributed to confirmed or suspected hardware issues (2407.21783, section 3.3.4)"""
DETECT_SECONDS = 60.0
"""assumed, not published"""
RECOVER_SECONDS = 300.0
"""assumed, not published: processes start, the checkpoint is read, the first steps are slow"""
REPAIR_HOURS = 24.0
"""assumed, not published"""


@dataclass(frozen=True, kw_only=True)
class PublishedRate:
    """Failures that were counted on a cluster of nodes with 8 GPUs each."""

    name: str
    failures: float
    node_days: float
    source: str
    """the publication, what it counts, and how sure the figure is"""

    @property
    def per_thousand_node_days(self) -> float:
        """Failures of a thousand nodes in a day."""
        return 1000 * self.failures / self.node_days

    @property
    def mtbf_hours(self) -> float:
        """Mean time between failures of a node."""
        return 24 * self.node_days / self.failures

    def job_hours(self, nodes: int) -> float:
        """Return the mean time between interruptions of a training on so many nodes.

        >>> [f"{rate.name}: {rate.job_hours(128):.1f} h" for rate in PUBLISHED[:3]]
        ['RSC-1: 28.8 h', 'RSC-2: 80.1 h', 'Llama 3: 49.5 h']
        """
        return self.mtbf_hours / nodes


PUBLISHED = (
    PublishedRate(
        name="RSC-1", failures=6.50, node_days=1000,
        source="Kokolis et al. 2024 (2410.21680, HPCA 2025): 6.50 failures per 1,000 node-days of 16,000 A100 over 11 "
        "months; read in three quotations that agree, not in the paper itself",
    ),
    PublishedRate(
        name="RSC-2", failures=2.34, node_days=1000,
        source="the same, a cluster of 8,000 A100: 2.34 per 1,000 node-days; read in one quotation",
    ),
    PublishedRate(
        name="Llama 3", failures=419, node_days=54 * 2048,
        source="Llama team 2024 (2407.21783), table 5: 419 unexpected interruptions in 54 days on 16,384 H100, about "
        "78 % of them hardware; many quotations agree",
    ),
    PublishedRate(
        name="OPT-175B", failures=35 + 70, node_days=60 * 124,
        source="Zhang et al. 2022 (2205.01068), section 2.5: at least 35 manual and an estimated 70 or more automatic "
        "restarts in 2 months on 992 A100; rough, since both are lower bounds and some restarts had other causes",
    ),
    PublishedRate(
        name="RSC-1, jobs of 1,024 GPUs", failures=24, node_days=7.9 * 128,
        source="Kokolis et al. 2024: a mean time to failure of 7.9 hours, measured on jobs of this size; read in two "
        "quotations. It is 3.6 times as often as the rate of the nodes says",
    ),
)  # fmt: skip
"""Rates of failures of nodes with 8 GPUs. None of the publications was at hand when this was written: the figures were
compared with other people's quotations of them, and ``source`` says with how many."""
RSC_1 = PUBLISHED[0]


@dataclass(frozen=True, kw_only=True)
class FailureModel:
    """The table ``[failures]`` of a cluster; None: not known, so that a plan assumes a value and says so."""

    mtbf_hours: float | None = None
    """mean time between failures of one node"""
    hardware: float | None = None
    """fraction of the failures after which a node is away for repair"""
    checkpoint_seconds: float | None = None
    """how long a checkpoint interrupts the computation"""
    write_seconds: float | None = None
    """how long it takes to be complete, if it is written while the computation goes on; None: the same"""
    detect_seconds: float | None = None
    """from a failure until it is noticed"""
    recover_seconds: float | None = None
    """from then until the training computes again"""
    repair_hours: float | None = None
    """how long a node is away"""
    spares: int | None = None
    """spare nodes; None: a plan chooses"""
    elastic: bool = False
    """go on with fewer nodes where there is no spare one, instead of waiting for a repair"""
    source: str = ""
    """where the rate comes from"""

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if value is None or isinstance(value, (bool, str)):
                continue
            expected, good = "0 or more and finite", 0 <= value < inf
            if one.name in ("mtbf_hours", "checkpoint_seconds", "write_seconds"):
                expected, good = "more than 0 and finite", 0 < value < inf
            elif one.name == "hardware":
                expected, good = "a fraction, from 0 to 1", 0 <= value <= 1
            if not good:
                raise ProfileError(f"failures: {one.name}", expected=expected, got=value, do="correct it")


def failure_model(cluster: Cluster) -> FailureModel:
    """Return the cluster's own model of failures, with a published rate if it has none.

    The default is the rate of RSC-1 for a device: nodes with fewer than its 8 devices fail more rarely.

    >>> from rueda.plan.cluster_files import load_cluster
    >>> model = failure_model(load_cluster("pcie4-4"))
    >>> round(model.mtbf_hours), model.source
    (7385, 'assumed as on RSC-1, another cluster')
    """
    from dataclasses import replace

    own = cluster.failures or FailureModel()
    if own.mtbf_hours is not None:
        return own if own.source else replace(own, source="as given")
    rate = RSC_1.mtbf_hours * 8 / cluster.devices_per_node
    return replace(own, mtbf_hours=rate, source="assumed as on RSC-1, another cluster")
