"""The time of an all-reduce: ring, halving and doubling, pipelined double tree; inside one node and across nodes.

With n workers, S bytes, and a link of latency a (seconds per message) and b seconds per byte in each direction:

====================  =============================================  ==============================================
ring                  2 (n - 1) a + 2 (n - 1) / n S b                Patarasuk & Yuan 2009: the fewest bytes, many
                                                                     messages
halving and doubling  2 log2(n) a + 2 (n - 1) / n S b                Rabenseifner 2004; Thakur et al. 2005: the
                                                                     fewest bytes and few messages, but between
                                                                     workers that are far apart
tree                  2 (h + k - 1) (a + S b / k), h = ceil(log2 n)  double binary trees (Sanders et al. 2009), in k
                                                                     chunks
hierarchical          reduce-scatter inside each node, all-reduce between nodes, all-gather inside each node
flat                  one algorithm over all devices, limited by the slowest link
====================  =============================================  ==============================================

A tree has few messages, but sends each byte twice and must be filled with chunks, so that a ring is faster for many
bytes and a tree for many workers (:func:`tree`). The fastest algorithm counts of those that the cluster's library has
(:data:`rueda.plan.cluster.LIBRARIES`): NCCL selects it in the same way, by a table of latencies and bandwidths. What
is left out: NCCL joins the devices of a node by a chain in place of a tree, and sends small messages by protocols of
less latency and less bandwidth.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from rueda.plan.cluster import LIBRARIES, Cluster, Link


def ring(num_bytes: float, workers: int, link: Link) -> float:
    """Return the seconds of a ring all-reduce.

    >>> ring(100e6, 8, Link(latency=0, bandwidth=1e9))
    0.175
    """
    hops = 2 * (workers - 1)
    return hops * link.latency + hops / workers * num_bytes / link.usable


def halving_doubling(num_bytes: float, workers: int, link: Link) -> float:
    """Return the seconds of an all-reduce by recursive halving and doubling.

    In log2 n rounds, each worker exchanges a half, a quarter, ... of the bytes with a partner and adds what it gets;
    log2 n further rounds collect the sums. If n is not a power of two, the workers beyond the largest one first send
    all their bytes to another worker and get the sum in the end (Thakur, Rabenseifner & Gropp 2005).

    >>> link = Link(latency=1e-6, bandwidth=1e9)
    >>> [round(halving_doubling(0, workers, link) * 1e6) for workers in (2, 8, 9, 1024)]
    [2, 6, 8, 20]
    """
    rounds = workers.bit_length() - 1
    power = 1 << rounds
    seconds = 2 * rounds * link.latency + 2 * (power - 1) / power * num_bytes / link.usable
    return seconds if power == workers else seconds + 2 * (link.latency + num_bytes / link.usable)


def tree(num_bytes: float, workers: int, link: Link) -> float:
    """Return the seconds of an all-reduce over a double binary tree, with the best number of chunks.

    Half of the bytes are added up one binary tree and half up another one, in which the leaves of the first are inner
    workers; then the sums come down again. In both directions a worker receives and sends all S bytes (Sanders, Speck &
    Träff 2009; NCCL since 2.4). In k chunks, the first chunk takes h = ceil(log2 n) stages up and h down, and each
    later chunk adds one stage for each direction:

        T(k) = 2 (h + k - 1) (a + S b / k),    least at k = sqrt((h - 1) S b / a), or at k = 1 if that is less:
        T    = 2 (sqrt(S b) + sqrt((h - 1) a))^2

    so that few bytes take 2 h (a + S b) and many bytes 2 S b, which is n / (n - 1) times as long as a ring. Between the
    two, the pipeline takes 4 sqrt((h - 1) a S b) more.

    >>> link = Link(latency=1e-6, bandwidth=1e9)
    >>> round(tree(0, 1024, link) * 1e6), round(tree(1e12, 1024, link))
    (20, 2000)
    >>> [ring(size, 8, link) > tree(size, 8, link) for size in (1e2, 1e3, 1e4, 1e6, 1e9)]
    [True, True, False, False, False]
    """
    if workers == 1:
        return 0.0
    height, transfer = math.ceil(math.log2(workers)), num_bytes / link.usable
    if (height - 1) * transfer <= link.latency:
        return 2 * height * (link.latency + transfer)
    return 2 * (math.sqrt(transfer) + math.sqrt((height - 1) * link.latency)) ** 2


ALGORITHMS: dict[str, Callable[[float, int, Link], float]] = {
    "ring": ring,
    "halving-doubling": halving_doubling,
    "tree": tree,
}
"""the algorithms by the names that :data:`rueda.plan.cluster.LIBRARIES` uses"""


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
        return _fastest(num_bytes, workers, cluster.link("inside"), cluster.library)
    local, outside = min(cluster.devices_per_node, workers), cluster.link("between")
    between = _fastest(num_bytes, nodes, outside, cluster.library)
    if local == 1:
        return between
    inside = cluster.link("inside")
    # A flat ring enters and leaves a node once for each of its ports: it has the bandwidth of the whole node.
    slowest = Link(latency=max(inside.latency, outside.latency), bandwidth=min(inside.usable, outside.usable))
    flat = _fastest(num_bytes, workers, slowest, cluster.library)
    return min(ring(num_bytes, local, inside) + between, flat)


def _fastest(num_bytes: float, workers: int, link: Link, library: str) -> float:
    return min(ALGORITHMS[name](num_bytes, workers, link) for name in LIBRARIES[library])
