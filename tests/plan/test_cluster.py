"""Clusters: the shipped ones, one's own, the profiled machine, and mistakes told in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from plan.profiles import line, profile, step
from rueda.errors import ProfileError
from rueda.plan import Cluster, Link, cluster_names, load_cluster, this_machine
from rueda.plan.cluster import THIS_MACHINE
from rueda.plan.cluster_files import read_cluster
from rueda.records.profile import Together

SHIPPED = [name for name in cluster_names() if name != THIS_MACHINE]


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_cluster_is_whole_and_cites_its_sources(name: str) -> None:
    cluster = load_cluster(name)
    assert cluster.name == name and cluster.title and cluster.device
    assert cluster.sources and all(len(text) > 10 for text in cluster.sources)
    for part in [link for link in (cluster.inside, cluster.between) if link is not None]:
        if name == "two-rooms" and part is cluster.between:
            assert (part.latency, part.bandwidth) == (0.01, 0.125e9)  # a line between two cities
        else:
            assert part.latency < 1e-3 and 1e9 < part.usable <= part.bandwidth
    assert (cluster.devices_per_node == 1) == (cluster.inside is None)


def test_the_figures_that_the_course_states() -> None:
    h100 = load_cluster("dgx-h100")
    assert h100.inside is not None and h100.between is not None
    assert h100.devices_per_node == 8 and 2 * h100.inside.bandwidth == 900e9
    assert h100.between.bandwidth == 8 * 400e9 / 8  # of ten ports of 400 Gb/s, eight carry gradients
    v100 = load_cluster("dgx-1-v100")
    assert v100.inside is not None and v100.inside.bandwidth == pytest.approx(6 * 48.5e9 / 2, rel=0.05)


OWN = """
title = "two boxes"
devices_per_node = 2
max_nodes = 2
price_per_hour = 3
[device]
name = "card"
speed = 2
[inside]
bandwidth = 1e10
latency = 1e-5
[between]
bandwidth = 1e9
latency = 5e-5
efficiency = 0.5
"""


def test_ones_own_file_and_a_profile_of_its_own_device(tmp_path: Path) -> None:
    profile([step(32, 0.5)]).save(tmp_path / "card.json")
    file = tmp_path / "boxes.toml"
    file.write_text(OWN.replace("speed = 2", 'profile = "card.json"'))
    cluster = load_cluster(file)
    assert cluster.name == "boxes" and cluster.price_per_hour == 3.0
    assert cluster.profile is not None and cluster.profile.steps[0].seconds == 0.5
    assert cluster.between is not None and cluster.between.usable == 5e8


MISTAKES = {
    "not TOML": ("devices_per_node = = 2", "expected TOML"),
    "no devices": ("title = 'x'", "expected devices_per_node, which is missing"),
    "no links": ("devices_per_node = 8", "expected a link between the devices of a node, got none; add [inside]"),
    "no link between nodes": (
        "devices_per_node = 1\n[inside]\nbandwidth = 1e9\nlatency = 0",
        "expected a link between nodes, got none; add [between] with bandwidth and latency",
    ),
    "a link without latency": (
        "devices_per_node = 2\n[inside]\nbandwidth = 1e9",
        "mine.toml.inside: expected latency, which is missing",
    ),
    "a link of no bandwidth": (
        "devices_per_node = 2\n[inside]\nbandwidth = 0\nlatency = 0",
        "expected latency >= 0, bandwidth > 0",
    ),
    "a misspelt field": ("devices_per_nod = 2", "got 'devices_per_nod'; did you mean devices_per_node?"),
    "a misspelt field of a link": (
        "devices_per_node = 2\n[inside]\nspeed = 3",
        "[inside]: expected one of bandwidth, efficiency, latency, got 'speed'",
    ),
    "a text for a number": ("devices_per_node = 'two'", "devices_per_node: expected int, got 'two'"),
    "a number for a table": ("devices_per_node = 1\nbetween = 3", "between: expected a table, got 3"),
    "no devices a node": (
        OWN.replace("devices_per_node = 2", "devices_per_node = 0"),
        "more than 0 and finite, got 0",
    ),
}


@pytest.mark.parametrize(("text", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_broken_file_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ProfileError) as error:
        read_cluster(text, name="mine", source="mine.toml")
    assert message in str(error.value) and "mine" in str(error.value) and "\n" not in str(error.value)


def test_an_unknown_name_and_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="did you mean dgx-h100"):
        load_cluster("dgx-h10")
    with pytest.raises(ProfileError, match=r"expected a cluster file, got: no such file"):
        load_cluster(tmp_path / "none.toml")


def test_the_profiled_machine() -> None:
    alone = [step(32, 0.010), step(64, 0.020)]
    pair = Together(workers=2, threads=1, compute=(step(32, 0.013), step(64, 0.026)), exchange=0.01)
    machine = this_machine(profile(alone, communication=(line(2, 1e-3, 1e9),), together=(pair,)))
    assert machine.devices_per_node == 2 and machine.nodes(2) == machine.nodes(64) == 1
    assert machine.contention == pytest.approx(1.3)
    # An all-reduce of 2 in a ring: two hops, and as many bytes as there are.
    assert machine.inside == Link(latency=5e-4, bandwidth=1e9)
    lonely = this_machine(profile(alone))
    with pytest.raises(ProfileError, match=r"this-machine: expected a link .* got none; measure it .`rueda measure"):
        lonely.link("inside")


def test_nodes() -> None:
    cluster = Cluster(name="c", devices_per_node=8)
    assert [cluster.nodes(count) for count in (1, 8, 9, 512)] == [1, 1, 2, 64]
