"""The time of an all-reduce: ring and tree algorithms, inside one node and across nodes.

With n workers, M bytes, and a link of latency a (seconds per hop) and bandwidth b (bytes per second in each direction):

=====================  =====================================  ===================================================
ring                   2 (n - 1) a + 2 (n - 1) / n M / b      Patarasuk & Yuan 2009: the fewest bytes, many hops
tree                   2 ceil(log2 n) a + 2 (n - 1) / n M/b   double binary trees (Sanders et al. 2009), or halving
                                                              and doubling: the same bytes, few hops
hierarchical           reduce-scatter inside each node, all-reduce between nodes, all-gather inside each node
flat                   one ring or tree over all devices, limited by the slowest link
=====================  =====================================  ===================================================

The fastest algorithm counts: NCCL selects it in the same way.
"""

from __future__ import annotations

import math

from rueda.plan.cluster import Cluster, Link


def ring(num_bytes: float, workers: int, link: Link) -> float:
    """Return the seconds of a ring all-reduce.

    >>> ring(100e6, 8, Link(latency=0, bandwidth=1e9))
    0.175
    """
    hops = 2 * (workers - 1)
    return hops * link.latency + hops / workers * num_bytes / link.usable


def tree(num_bytes: float, workers: int, link: Link) -> float:
    """Return the seconds of an all-reduce over a double binary tree, or by halving and doubling.

    >>> round(tree(0, 1024, Link(latency=1e-6, bandwidth=1e9)) * 1e6)
    20
    """
    hops = 2 * math.ceil(math.log2(workers)) if workers > 1 else 0
    return hops * link.latency + 2 * (workers - 1) / workers * num_bytes / link.usable


def all_reduce(num_bytes: float, workers: int, cluster: Cluster) -> float:
    """Return the seconds of one all-reduce of ``num_bytes`` among ``workers`` devices of a cluster.

    If the cluster is the profiled machine and this number of workers was measured, the measured line is used.

    Raises:
        ProfileError: the cluster lacks a link that the all-reduce needs.

    >>> box = Cluster(name="box", devices_per_node=8, inside=Link(latency=0, bandwidth=1e9), max_nodes=1)
    >>> all_reduce(100e6, 8, box)
    0.175
    """
    if workers == 1:
        return 0.0
    for line in cluster.measured:
        if line.workers == workers:
            return line.seconds(num_bytes)
    nodes = cluster.nodes(workers)
    if nodes == 1:
        return _faster(num_bytes, workers, cluster.link("inside"))
    local, outside = min(cluster.devices_per_node, workers), cluster.link("between")
    between = _faster(num_bytes, nodes, outside)
    if local == 1:
        return between
    inside = cluster.link("inside")
    # A flat ring enters and leaves a node once for each of its ports: it has the bandwidth of the whole node.
    slowest = Link(latency=max(inside.latency, outside.latency), bandwidth=min(inside.usable, outside.usable))
    return min(ring(num_bytes, local, inside) + between, _faster(num_bytes, workers, slowest))


def _faster(num_bytes: float, workers: int, link: Link) -> float:
    return min(ring(num_bytes, workers, link), tree(num_bytes, workers, link))
