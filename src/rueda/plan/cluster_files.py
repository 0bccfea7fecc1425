"""The cluster as a small TOML file: the shipped ones by name, or one's own.

::

    title = "DGX H100"
    devices_per_node = 8
    sources = ["..."]              # where the figures come from
    approximate = ["price_per_hour"]
    price_per_hour = 55.0          # of a node; leave it out where it is not known

    [device]
    name = "H100"
    speed = 1.0                    # against the profiled device; leave it out where it is not known
    jitter = 0.015                 # standard deviation of step times between devices, as a fraction

    [inside]                       # between the devices of a node
    bandwidth = 450e9              # bytes a second that a device sends while it receives as many
    latency = 3.4e-6               # seconds of one hop
    efficiency = 0.8               # what an all-reduce gets of it

    [between]                      # of a node, all its network ports together
    bandwidth = 400e9
    latency = 14e-6
    efficiency = 0.9

A cluster of one node needs no ``between`` (``max_nodes = 1``), one of single devices no ``inside``.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from rueda.errors import ProfileError
from rueda.plan.cluster import THIS_MACHINE, Cluster, Link
from rueda.records.profile import Profile


def cluster_names() -> list[str]:
    """List the shipped clusters.

    >>> "dgx-h100" in cluster_names()
    True
    """
    shipped = sorted(file.name.removesuffix(".toml") for file in _shipped().iterdir() if file.name.endswith(".toml"))
    return [THIS_MACHINE, *shipped]


def load_cluster(name_or_path: str | Path) -> Cluster:
    """Read a shipped cluster by its name, or a TOML file.

    >>> box = load_cluster("dgx-h100")
    >>> box.devices_per_node, box.inside.bandwidth / 1e9
    (8, 450.0)
    """
    text, name = str(name_or_path), Path(name_or_path).stem
    if text.endswith(".toml") or "/" in text:
        try:
            content = Path(text).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ProfileError(f"{text}: expected a cluster file, got: {error}; check the path") from None
        return read_cluster(content, name=name, source=text, folder=Path(text).parent)
    if text == THIS_MACHINE:
        raise ProfileError(f"{THIS_MACHINE} is made from a profile; call this_machine(profile)")
    file = _shipped() / f"{text}.toml"
    if not file.is_file():
        close = difflib.get_close_matches(text, cluster_names(), 1)
        do = f"did you mean {close[0]}?" if close else f"choose one of {', '.join(cluster_names())}, or a .toml file"
        raise ProfileError("cluster", expected="a shipped cluster or a .toml file", got=text, do=do)
    return read_cluster(file.read_text(encoding="utf-8"), name=name, source=f"{text}.toml")


def read_cluster(text: str, *, name: str, source: str, folder: Path | None = None) -> Cluster:
    """Read a cluster's TOML; what is wrong or missing is told in one line."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        data = tomlkit.parse(text).unwrap()
    except TOMLKitError as error:
        raise ProfileError(f"{source}: expected TOML, got: {error}; correct the file") from None
    device = _table(data, "device", source, {"name": str, "speed": float, "jitter": float, "profile": str})
    values: dict[str, Any] = _flat(data, source)
    for part in ("inside", "between"):
        table = _table(data, part, source, {"latency": float, "bandwidth": float, "efficiency": float})
        if table:
            missing = [field for field in ("latency", "bandwidth") if field not in table]
            if missing:
                raise ProfileError(f"{source}: [{part}] lacks {missing[0]}; add it")
            try:
                values[part] = Link(**table)
            except ProfileError as error:
                raise ProfileError(f"{source}: [{part}] {error}") from None
    if "name" in device:
        values["device"] = device.pop("name")
    if "profile" in device:
        values["profile"] = Profile.load((folder or Path()) / device.pop("profile"))
    if "devices_per_node" not in values:
        raise ProfileError(f"{source}: expected devices_per_node, got none; add it")
    cluster = Cluster(name=name, **values, **device)
    for part, needed in (("inside", cluster.devices_per_node > 1), ("between", cluster.max_nodes != 1)):
        if needed:
            try:
                cluster.link(part)
            except ProfileError as error:
                raise ProfileError(f"{source}: {error}") from None
    return cluster


def _shipped() -> Any:
    return files("rueda.plan") / "clusters"


_KINDS: dict[str, type] = {
    "title": str,
    "devices_per_node": int,
    "max_nodes": int,
    "cycle": float,
    "price_per_hour": float,
    "currency": str,
    "contention": float,
    "sources": list,
    "approximate": list,
}


def _flat(data: Mapping[str, Any], source: str) -> dict[str, Any]:
    known = {*_KINDS, "device", "inside", "between"}
    for name in data:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            do = f"did you mean {close[0]}?" if close else "remove it"
            raise ProfileError(f"{source}", expected="a known field", got=name, do=do)
    found = {name: _take(data[name], kind, f"{source}: {name}") for name, kind in _KINDS.items() if name in data}
    return {name: tuple(map(str, value)) if isinstance(value, list) else value for name, value in found.items()}


def _table(data: Mapping[str, Any], name: str, source: str, kinds: Mapping[str, type]) -> dict[str, Any]:
    table = data.get(name, {})
    if not isinstance(table, dict):
        raise ProfileError(f"{source}: {name}", expected="a table", got=table, do=f"write [{name}]")
    for key in table:
        if key not in kinds:
            known = ", ".join(kinds)
            raise ProfileError(f"{source}: [{name}]", expected=f"one of {known}", got=key, do="correct it")
    return {key: _take(value, kinds[key], f"{source}: {name}.{key}") for key, value in table.items()}


def _take(value: Any, kind: type, where: str) -> Any:
    fits = isinstance(value, (int, float) if kind is float else kind) and not isinstance(value, bool)
    if not fits:
        noun = {int: "a whole number", float: "a number", str: "a text", list: "a list"}[kind]
        raise ProfileError(where, expected=noun, got=value, do="correct it")
    return float(value) if kind is float else value
