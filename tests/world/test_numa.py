from __future__ import annotations

from pathlib import Path

import pytest

from rueda.world.identity import Identity
from rueda.world.numa import bind, choose_cores

ALL = set(range(8))


def machine(folder: Path, *nodes: str, gpus: dict[str, int] | None = None) -> Path:
    """Write a tree as Linux mounts it at /sys."""
    for number, cores in enumerate(nodes):
        (folder / f"devices/system/node/node{number}").mkdir(parents=True)
        (folder / f"devices/system/node/node{number}/cpulist").write_text(f"{cores}\n")
    for address, node in (gpus or {}).items():
        (folder / f"bus/pci/devices/{address}").mkdir(parents=True)
        (folder / f"bus/pci/devices/{address}/numa_node").write_text(f"{node}\n")
    return folder


@pytest.mark.parametrize(
    ("local_rank", "local_size", "address", "allowed", "expected"),
    [
        (0, 2, "0000:3b:00.0", ALL, {4, 5, 6, 7}),  # the node of the GPU, not that of the rank
        (1, 2, "0000:1a:00.0", ALL, {0, 1, 2, 3}),
        (0, 2, "0000:ff:00.0", ALL, None),  # Linux does not know its node
        (0, 2, "", ALL, None),  # torch does not know its address
        (0, 2, None, ALL, {0, 1, 2, 3}),  # on the CPU, by local rank
        (1, 2, None, ALL, {4, 5, 6, 7}),
        (1, 4, None, ALL, {0, 1, 2, 3}),
        (2, 4, None, ALL, {4, 5, 6, 7}),
        (0, 1, None, ALL, None),  # one worker uses the whole machine
        (0, 3, None, ALL, None),  # three do not divide into two nodes
        (0, 2, "0000:3b:00.0", {0, 1, 4, 5}, None),  # somebody has limited the cores
    ],
)
def test_a_worker_is_bound_to_one_node(tmp_path, local_rank, local_size, address, allowed, expected) -> None:
    gpus = {"0000:1a:00.0": 0, "0000:3b:00.0": 1, "0000:ff:00.0": -1}
    root = machine(tmp_path, "0-3", "4-7", gpus=gpus)
    identity = Identity(rank=local_rank, size=local_size, local_rank=local_rank, local_size=local_size)
    assert choose_cores(identity, address, allowed, 8, root) == expected


@pytest.mark.parametrize("nodes", [(), ("0-7",), ("0-7", ""), ("nonsense", "0-7")])
def test_one_node_is_left_as_it_is(tmp_path, nodes) -> None:
    identity = Identity(rank=0, size=2, local_rank=0, local_size=2)
    assert choose_cores(identity, None, ALL, 8, machine(tmp_path, *nodes)) is None


def test_it_can_be_turned_off() -> None:
    import torch

    assert bind(Identity(), torch.device("cpu"), {"RUEDA_NUMA": "off"}) is None
