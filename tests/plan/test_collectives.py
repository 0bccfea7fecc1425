"""All-reduce times against their closed forms, written again here, and against each other."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from rueda.errors import ProfileError
from rueda.plan import Cluster, Link
from rueda.plan.cluster import LIBRARIES
from rueda.plan.collectives import ALGORITHMS, all_reduce, halving_doubling, ring, tree
from rueda.plan.stragglers import expected_maximum, slowdown

NVLINK = Link(latency=3e-6, bandwidth=100e9, efficiency=0.8)
NETWORK = Link(latency=10e-6, bandwidth=10e9)
BOXES = Cluster(name="boxes", devices_per_node=8, inside=NVLINK, between=NETWORK)


@pytest.mark.parametrize("count", [2, 3, 8, 100])
def test_a_ring_step_by_step(count: int) -> None:
    """2 (n - 1) rounds, in each of which every worker sends one n-th of the bytes."""
    rounds = [NETWORK.latency + 1e8 / count / NETWORK.bandwidth for _ in range(2 * (count - 1))]
    assert ring(1e8, count, NETWORK) == pytest.approx(sum(rounds))


@pytest.mark.parametrize("count", [2, 8, 64])
def test_halving_and_doubling_round_by_round(count: int) -> None:
    """log2 n rounds that exchange a half, a quarter, ... of the bytes, and the same way back."""
    seconds, part = 0.0, 1e8
    for _ in range(int(math.log2(count))):
        part /= 2
        seconds += NETWORK.latency + part / NETWORK.bandwidth
    assert halving_doubling(1e8, count, NETWORK) == pytest.approx(2 * seconds)
    folded = 2 * (seconds + NETWORK.latency + 1e8 / NETWORK.bandwidth)  # one more sends all it has, and waits
    assert count == 2 or halving_doubling(1e8, count + 1, NETWORK) == pytest.approx(folded)


def simulated_tree(chunks: int, height: int, num_bytes: float, link: Link) -> float:
    """Send chunks through `height` levels, one message at a time on each, and the same way back."""
    message = link.latency + num_bytes / chunks / link.usable
    arrived = [0.0] * chunks
    for _ in range(height):
        free = 0.0  # when this level can send again
        for chunk in range(chunks):
            arrived[chunk] = free = max(arrived[chunk], free) + message
    return 2 * arrived[-1]


@pytest.mark.parametrize("count", [2, 4, 8, 100, 1024])
@pytest.mark.parametrize("size", [4, 1e4, 1e6, 1e8, 1e10])
def test_a_tree_with_its_best_number_of_chunks(count: int, size: float) -> None:
    """No number of chunks is faster than the closed form, and the best whole number is at most 2 % slower."""
    height = math.ceil(math.log2(count))
    best = max(1.0, math.sqrt((height - 1) * size / NETWORK.bandwidth / NETWORK.latency))
    tried = {max(1, round(best * factor)) for factor in (0.5, 0.8, 1, 1.25, 2)} | {1, math.floor(best), math.ceil(best)}
    found = {chunks: 2 * (height + chunks - 1) * (NETWORK.latency + size / chunks / NETWORK.usable) for chunks in tried}
    assert tree(size, count, NETWORK) <= min(found.values()) * (1 + 1e-12)
    assert tree(size, count, NETWORK) == pytest.approx(min(found.values()), rel=0.02)
    for chunks in tried:
        if chunks <= 300:
            assert simulated_tree(chunks, height, size, NETWORK) == pytest.approx(found[chunks])


@pytest.mark.parametrize("link", [NVLINK, NETWORK], ids=["nvlink", "network"])
@pytest.mark.parametrize("count", [4, 6, 8, 16, 64, 256, 1000])
def test_a_tree_is_faster_up_to_one_size_and_a_ring_from_there_on(count: int, link: Link) -> None:
    """As in NCCL's table; the more workers, the larger the size where they meet."""
    sizes = [2.0**exponent for exponent in range(2, 50)]
    is_tree = [tree(size, count, link) < ring(size, count, link) for size in sizes]
    assert is_tree[0] and not is_tree[-1] and is_tree == sorted(is_tree, reverse=True)
    more = [tree(size, 2 * count, link) < ring(size, 2 * count, link) for size in sizes]
    assert sum(more) > sum(is_tree)
    # In units of latency x bandwidth, x = S b / a, they meet where (n - 1) - (h - 1) = x / n + 2 sqrt((h - 1) x).
    above = math.ceil(math.log2(count)) - 1
    root = count * (math.sqrt(above + (count - 1 - above) / count) - math.sqrt(above))
    meeting = root**2 * link.latency * link.usable
    if above * root**2 > 1:  # more than one chunk
        assert tree(meeting, count, link) == pytest.approx(ring(meeting, count, link))
        assert sizes[sum(is_tree) - 1] <= meeting <= sizes[sum(is_tree)]


@pytest.mark.parametrize("count", [2, 4, 64, 1024])
@pytest.mark.parametrize("size", [4, 1e6, 1e9])
def test_halving_and_doubling_is_never_slower_where_it_fits(count: int, size: float) -> None:
    rivals = ring(size, count, NETWORK), tree(size, count, NETWORK)
    assert halving_doubling(size, count, NETWORK) <= min(rivals) * (1 + 1e-12)


def test_the_library_decides_what_there_is_to_choose_from() -> None:
    assert all_reduce(4, 8, BOXES) == tree(4, 8, NVLINK) < ring(4, 8, NVLINK)
    assert all_reduce(1e9, 8, BOXES) == ring(1e9, 8, NVLINK) < tree(1e9, 8, NVLINK)
    assert all_reduce(4, 8, replace(BOXES, library="gloo")) == ring(4, 8, NVLINK)
    for library in ("mpi", "caffe2"):
        assert all_reduce(1e6, 8, replace(BOXES, library=library)) == halving_doubling(1e6, 8, NVLINK)
    assert all_reduce(1e9, 1, BOXES) == 0
    with pytest.raises(ProfileError, match=r"boxes: library: expected one of nccl, .* got 'ncl'; did you mean"):
        replace(BOXES, library="ncl")
    assert {name for names in LIBRARIES.values() for name in names} == set(ALGORITHMS)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("size", [4, 1e6, 1e9])
def test_over_nodes_never_slower_than_flat_or_hierarchical(library: str, size: float) -> None:
    boxes, slow = replace(BOXES, library=library), Link(latency=10e-6, bandwidth=10e9)
    flat = min(ALGORITHMS[name](size, 64, slow) for name in LIBRARIES[library])
    layered = ring(size, 8, NVLINK) + min(ALGORITHMS[name](size, 8, NETWORK) for name in LIBRARIES[library])
    assert all_reduce(size, 64, boxes) == min(flat, layered)


def test_over_nodes_the_slow_link_counts_once() -> None:
    """64 workers in 8 nodes: the bytes cross the network as among 8, not as among 64 on one port each."""
    found = all_reduce(1e9, 64, BOXES)
    lower = 2 * 7 / 8 * 1e9 / NETWORK.bandwidth
    assert lower < found < 1.2 * lower + ring(1e9, 8, NVLINK)


def test_more_bytes_or_workers_never_take_less() -> None:
    counts = [2, 4, 8, 16, 64, 512]
    for sizes in ([1e3, 1e5, 1e7, 1e9],):
        table = [[all_reduce(size, count, BOXES) for size in sizes] for count in counts]
        assert all(row == sorted(row) for row in table)
        assert all(list(column) == sorted(column) for column in zip(*table, strict=True))


def test_a_cluster_without_the_link() -> None:
    one = Cluster(name="one", devices_per_node=8, inside=NVLINK)
    assert all_reduce(1e6, 8, one) > 0
    with pytest.raises(ProfileError, match="one: expected a link between nodes, got none"):
        all_reduce(1e6, 9, one)


@pytest.mark.parametrize("count", [2, 8, 64])
def test_the_slowest_of_some_by_lot(count: int) -> None:
    draw = random.Random(0)
    trials = 4000
    mean = sum(max(draw.gauss(0, 1) for _ in range(count)) for _ in range(trials)) / trials
    assert expected_maximum(count) == pytest.approx(mean, abs=4 / math.sqrt(trials))


def test_the_slowest_of_some_in_closed_form() -> None:
    assert expected_maximum(2) == pytest.approx(1 / math.sqrt(math.pi), abs=1e-6)
    assert expected_maximum(3) == pytest.approx(1.5 / math.sqrt(math.pi), abs=1e-6)
    assert slowdown(1, 0.5) == 1.0
