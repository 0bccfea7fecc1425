"""Read clusters from small TOML files: the shipped ones by name, and a user's own by path.

::

    title = "DGX H100"
    devices_per_node = 8
    library = "nccl"               # that runs the all-reduces: nccl (the default), gloo, caffe2 or mpi
    sources = ["..."]              # where the figures come from
    approximate = ["price_per_hour"]
    price_per_hour = 55.0          # of a node; leave it out if it is not known

    [device]
    name = "H100"
    speed = 1.0                    # relative to the profiled device; leave it out if it is not known
    memory = 80e9                  # bytes of a device; leave it out if it is not known
    jitter = 0.015                 # standard deviation of step times among devices, as a fraction

    [device.peaks]                 # as the manufacturer states them; leave the table out if they are not known
    memory_bandwidth = 3.35e12     # bytes per second
    float32 = 66.9e12              # flops per second, without tensor cores
    tf32 = 494.7e12                # on tensor cores, dense; leave out what the device lacks: tf32, bf16, fp16, float64
    bf16 = 989.4e12

    [inside]                       # between the devices of a node
    bandwidth = 450e9              # bytes per second in each direction
    latency = 3.4e-6               # seconds per hop
    efficiency = 0.8               # fraction of the bandwidth that an all-reduce gets

    [between]                      # between nodes: all network ports of a node together
    bandwidth = 400e9
    latency = 14e-6
    efficiency = 0.9

    [failures]                     # what is left out is assumed, and the plan says so
    mtbf_hours = 3692              # mean time between failures of one node
    hardware = 0.78                # fraction of them after which the node is away for repair
    checkpoint_seconds = 5         # how long a checkpoint interrupts the computation
    write_seconds = 60             # until it is complete, if it is written meanwhile; by default the same
    detect_seconds = 60            # until a failure is noticed
    recover_seconds = 300          # from then until the training computes again
    repair_hours = 24              # how long a node is away
    spares = 2                     # spare nodes; by default the plan chooses
    elastic = false                # go on with fewer nodes instead of waiting for a repair

A cluster of a single node (``max_nodes = 1``) needs no ``between``, and one with a single device in each node no
``inside``.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from rueda.errors import ProfileError, read_failure, suggest
from rueda.files.text import read_text
from rueda.plan.cluster import THIS_MACHINE, Cluster, Link, this_machine
from rueda.plan.failures import FailureModel
from rueda.plan.roofline import DevicePeaks
from rueda.records.json_record import read_record
from rueda.records.profile import Profile

_DEVICE = {"name": "device", "speed": "speed", "jitter": "jitter", "profile": "profile", "peaks": "peaks",
           "memory": "memory"}  # fmt: skip
"""names in the table ``[device]``, and the fields of :class:`Cluster` that they set"""
_LINK = {field.name for field in fields(Link)}
_PEAKS = {field.name for field in fields(DevicePeaks)}
_FAILURES = {field.name for field in fields(FailureModel)}
_TOP = {field.name for field in fields(Cluster)} - {"name", "measured", "is_profiled", *_DEVICE.values()} | {"device"}


def cluster_names() -> list[str]:
    """List the names that ``--cluster`` takes.

    >>> "dgx-h100" in cluster_names()
    True
    """
    shipped = sorted(file.name.removesuffix(".toml") for file in _shipped().iterdir() if file.name.endswith(".toml"))
    return [THIS_MACHINE, *shipped]


def load_cluster(name_or_path: str | Path, profile: Profile | None = None) -> Cluster:
    """Load a shipped cluster by its name, a TOML file, or ``this-machine``, which is made from a profile.

    >>> box = load_cluster("dgx-h100")
    >>> box.devices_per_node, box.inside.bandwidth / 1e9
    (8, 450.0)
    """
    text, name = str(name_or_path), Path(name_or_path).stem
    if text.endswith(".toml") or "/" in text:
        try:
            content = read_text(text)
        except (OSError, UnicodeDecodeError) as error:
            raise ProfileError(f"{text}: expected a cluster file, got: {read_failure(error)}; check the path") from None
        return read_cluster(content, name=name, source=text, folder=Path(text).parent)
    if text == THIS_MACHINE:
        if profile is None:
            raise ProfileError(f"{THIS_MACHINE} is made from a profile; call this_machine(profile)")
        return this_machine(profile)
    file = _shipped() / f"{text}.toml"
    if not file.is_file():
        do = suggest(text, cluster_names(), f"choose one of {', '.join(cluster_names())}, or a .toml file")
        raise ProfileError("cluster", expected="a shipped cluster or a .toml file", got=text, do=do)
    return read_cluster(file.read_text(encoding="utf-8"), name=name, source=f"{text}.toml")


def read_cluster(text: str, *, name: str, source: str, folder: Path | None = None) -> Cluster:
    """Parse the TOML of a cluster.

    Args:
        text: the TOML.
        name: what to call the cluster.
        source: the file, for error messages.
        folder: the folder that the path of a profile is relative to.

    Raises:
        ProfileError: the text is not TOML, or a field is unknown, missing or wrong.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        data = tomlkit.parse(text).unwrap()
    except TOMLKitError as error:
        raise ProfileError(f"{source}: expected TOML, got: {error}; correct the file") from None
    _check_names(data, _TOP, source)
    for part, known in (("device", _DEVICE), ("inside", _LINK), ("between", _LINK), ("failures", _FAILURES)):
        if not isinstance(data.get(part, {}), dict):
            raise ProfileError(f"{source}: {part}", expected="a table", got=data[part], do=f"write [{part}]")
        _check_names(data.get(part, {}), known, f"{source}: [{part}]")
    device = {_DEVICE[key]: value for key, value in data.pop("device", {}).items()}
    if isinstance(device.get("peaks"), dict):
        _check_names(device["peaks"], _PEAKS, f"{source}: [device.peaks]")
    own_profile = device.pop("profile", None)
    try:
        cluster = read_record(Cluster, {**data, **device, "name": name}, source)
        for part, needed in (("inside", cluster.devices_per_node > 1), ("between", cluster.max_nodes != 1)):
            if needed:
                cluster.link(part)
    except TypeError as error:
        raise ProfileError(f"{error}; correct the file") from None
    except ProfileError as error:
        raise ProfileError(f"{source}: {error}") from None
    if own_profile is None:
        return cluster
    return replace(cluster, profile=Profile.load((folder or Path()) / str(own_profile)))


def _shipped() -> Any:
    return files("rueda.plan") / "clusters"


def _check_names(table: Collection[str], known: Collection[str], where: str) -> None:
    """Refuse an unknown name, and suggest the one that was probably meant."""
    for name in table:
        if name not in known:
            expected = f"one of {', '.join(sorted(known))}"
            raise ProfileError(where, expected=expected, got=name, do=suggest(name, known, "remove it"))
