"""Time of an all-reduce: ring and tree, inside a node and over nodes.

With n participants, M bytes, a link of latency a (seconds a hop) and bandwidth b (bytes a second each way):

=====================  =====================================  ===================================================
ring                   2 (n - 1) a + 2 (n - 1) / n M / b      Patarasuk & Yuan 2009: the fewest bytes, many hops
tree                   2 ceil(log2 n) a + 2 (n - 1) / n M/b   double binary trees (Sanders et al. 2009), or halving
                                                              and doubling: the same bytes, few hops
hierarchical           reduce-scatter inside the nodes, all-reduce between them, all-gather inside
flat                   one ring or tree over all devices, as slow as its slowest link
=====================  =====================================  ===================================================

The fastest is taken, as NCCL does.

Where some layers are split between the workers (Krizhevsky 2014, 1404.5997), activations are exchanged, too: each
worker gives S bytes to all others on the way forward and gets their gradients on the way back. All at once that is an
all-gather and a reduce-scatter, the two halves of an all-reduce of n S bytes. In turns, one worker after the other
sends to all: 2 n (n - 1) (a + S / b), since each turn is as slow as the one sender's link.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from rueda.plan.cluster import Cluster, Link


@dataclass(frozen=True, kw_only=True)
class Shared:
    """What each worker gives to all others within a step, beside the gradients."""

    bytes: float
    in_turns: bool = False
    """one worker sends after the other; otherwise all at once"""


class AllReduce(NamedTuple):
    """Seconds of an all-reduce, and by which algorithm."""

    seconds: float
    algorithm: str


def ring(num_bytes: float, participants: int, link: Link) -> float:
    """Seconds of an all-reduce in a ring.

    >>> ring(100e6, 8, Link(latency=0, bandwidth=1e9))
    0.175
    """
    hops = 2 * (participants - 1)
    return hops * link.latency + hops / participants * num_bytes / link.usable


def tree(num_bytes: float, participants: int, link: Link) -> float:
    """Seconds of an all-reduce over a double binary tree, or by halving and doubling.

    >>> round(tree(0, 1024, Link(latency=1e-6, bandwidth=1e9)) * 1e6)
    20
    """
    hops = 2 * math.ceil(math.log2(participants)) if participants > 1 else 0
    return hops * link.latency + 2 * (participants - 1) / participants * num_bytes / link.usable


def all_reduce(num_bytes: float, workers: int, cluster: Cluster) -> AllReduce:
    """Give the time of one all-reduce of ``num_bytes`` among ``workers`` devices of a cluster.

    Where the cluster is the profiled machine and as many workers were measured, it is the measured line.

    Raises:
        ProfileError: the cluster lacks a link that it needs.

    >>> one = Cluster(name="box", devices_per_node=8, inside=Link(latency=1e-6, bandwidth=100e9), max_nodes=1)
    >>> all_reduce(100e6, 8, one).algorithm
    'tree inside the node'
    """
    if workers == 1:
        return AllReduce(0.0, "none")
    for line in cluster.measured:
        if line.workers == workers:
            return AllReduce(line.seconds(num_bytes), "as measured")
    nodes = cluster.nodes(workers)
    local = workers if nodes == 1 else min(cluster.devices_per_node, workers)
    if nodes == 1:
        return _best(num_bytes, local, cluster.link("inside"), "inside the node")
    between = _best(num_bytes, nodes, cluster.link("between"), "between nodes")
    if local == 1:
        return between
    inside = cluster.link("inside")
    hierarchical = AllReduce(
        ring(num_bytes, local, inside) + between.seconds, f"ring inside nodes, {between.algorithm}"
    )
    outside = cluster.link("between")
    # A flat ring enters and leaves a node as often as the node has ports: its bandwidth is the node's.
    slowest = Link(latency=max(inside.latency, outside.latency), bandwidth=min(inside.usable, outside.usable))
    flat = _best(num_bytes, workers, slowest, "over all devices")
    return min(hierarchical, flat)


def share(what: Shared, workers: int, cluster: Cluster) -> float:
    """Give the seconds of an exchange of activations, forward and back.

    >>> box = Cluster(name="box", devices_per_node=8, inside=Link(latency=0, bandwidth=6e9), max_nodes=1)
    >>> [round(share(Shared(bytes=6e6, in_turns=turns), 8, box) * 1e3) for turns in (False, True)]
    [14, 112]
    """
    if not what.in_turns:
        return all_reduce(workers * what.bytes, workers, cluster).seconds
    nodes = cluster.nodes(workers)
    used = ["inside"] * (workers > nodes) + ["between"] * (nodes > 1)
    links = [cluster.link(name) for name in used]
    return max(2 * workers * (workers - 1) * (link.latency + what.bytes / link.usable) for link in links)


def _best(num_bytes: float, participants: int, link: Link, where: str) -> AllReduce:
    return min(
        AllReduce(ring(num_bytes, participants, link), f"ring {where}"),
        AllReduce(tree(num_bytes, participants, link), f"tree {where}"),
    )
