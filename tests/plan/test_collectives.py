"""All-reduce times against their closed forms, written again here, and against each other."""

from __future__ import annotations

import math
import random

import pytest

from rueda.errors import ProfileError
from rueda.plan import Cluster, Link
from rueda.plan.collectives import all_reduce, ring, tree
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
def test_a_tree_as_halving_and_doubling(count: int) -> None:
    """log2 n rounds that exchange a half, a quarter, ... of the bytes, and the same way back."""
    seconds, part = 0.0, 1e8
    for _ in range(int(math.log2(count))):
        part /= 2
        seconds += NETWORK.latency + part / NETWORK.bandwidth
    assert tree(1e8, count, NETWORK) == pytest.approx(2 * seconds)


def test_few_bytes_go_by_tree_and_one_worker_sends_nothing() -> None:
    assert all_reduce(4, 8, BOXES) == tree(4, 8, NVLINK) < ring(4, 8, NVLINK)
    assert all_reduce(1e9, 1, BOXES) == 0


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
