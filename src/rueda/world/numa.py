"""Bind a worker to the cores of one NUMA node: that of its GPU, or one chosen by its local rank.

On a machine of several sockets each core reaches the memory and the PCIe devices of its own node about twice as fast as
those of another one. Linux describes the nodes in ``/sys/devices/system/node`` and the node of each PCI device in
``/sys/bus/pci/devices``. A worker whose cores somebody has limited already (a launcher, a container) is left alone, and
so is every worker if ``RUEDA_NUMA=off``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from rueda.world.identity import Identity


def bind(identity: Identity, device: torch.device, environ: Mapping[str, str] = os.environ) -> set[int] | None:
    """Bind this process to the cores of its node; return them, or None if it is left as it is."""
    if environ.get("RUEDA_NUMA", "").lower() == "off" or not hasattr(os, "sched_setaffinity"):
        return None
    cores = choose_cores(identity, _pci_address(device), os.sched_getaffinity(0), os.cpu_count() or 1)
    if cores is not None:
        os.sched_setaffinity(0, cores)
    return cores


def choose_cores(
    identity: Identity, pci_address: str | None, allowed: set[int], num_cores: int, root: Path = Path("/sys")
) -> set[int] | None:
    """Return the cores of the node for this worker; None if binding would not help.

    Args:
        identity: the local rank, which chooses a node where no GPU does, if each node gets as many workers.
        pci_address: the address of the worker's GPU, such as ``0000:3b:00.0``.
        allowed: the cores that this process may use.
        num_cores: the cores of the machine.
        root: the directory that Linux mounts at ``/sys``.
    """
    nodes = {number: cores & allowed for number, cores in _nodes(root).items() if cores & allowed}
    if len(nodes) < 2 or len(allowed) < num_cores:
        return None
    node = _node_of(pci_address, root)
    if node is None and pci_address is None and identity.local_size % len(nodes) == 0:
        node = sorted(nodes)[identity.local_rank * len(nodes) // identity.local_size]
    return nodes.get(-1 if node is None else node)


def parse_cores(text: str) -> set[int]:
    """Read a list of cores as Linux writes it.

    >>> sorted(parse_cores("0-2,8,10-11"))
    [0, 1, 2, 8, 10, 11]
    """
    cores: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            cores |= set(range(int(first), int(last or first) + 1))
    return cores


def _nodes(root: Path) -> dict[int, set[int]]:
    nodes = {}
    for folder in root.glob("devices/system/node/node[0-9]*"):
        try:
            nodes[int(folder.name.removeprefix("node"))] = parse_cores((folder / "cpulist").read_text())
        except (OSError, ValueError):
            continue
    return nodes


def _node_of(pci_address: str | None, root: Path) -> int | None:
    """Return the node of a PCI device; None if it is not known (Linux writes -1)."""
    try:
        node = int((root / f"bus/pci/devices/{pci_address}/numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _pci_address(device: torch.device) -> str | None:
    """Return the PCI address of a CUDA device; None for any other device, "" if torch does not know it."""
    if device.type != "cuda":
        return None
    about = torch.cuda.get_device_properties(device)
    parts: list[Any] = [getattr(about, name, None) for name in ("pci_domain_id", "pci_bus_id", "pci_device_id")]
    return "" if None in parts else "{:04x}:{:02x}:{:02x}.0".format(*parts)
