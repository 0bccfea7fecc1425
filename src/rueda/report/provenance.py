"""The provenance of a section: machines, versions, commits and commands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rueda.report.escape import to_html
from rueda.report.model import Cell, Section, Table
from rueda.report.table import plain_table
from rueda.terminal.numbers import number


def provenance(section: Section) -> str:
    """Return the last part of a section: a row for each distinct machine and version, then commands and notes."""
    abouts = [*section.environments, *(line.environment for line in section.lines)]
    places: dict[tuple[str, str, str], list[str]] = {}
    for about in abouts:
        place = (_machine(about.get("machine")), _versions(about.get("versions")), _text(about.get("commit")))
        if any(place):
            places.setdefault(place, []).append(_text(about.get("time")))
    rows: list[list[Cell]] = [[*place, _span(times)] for place, times in places.items()]
    table = Table(title="What was run where", heads=["machine", "versions", "commit", "when"], rows=rows)
    commands = list(dict.fromkeys(text for about in abouts if (text := _text(about.get("command")))))
    parts = []
    if commands:
        listed = "".join(f"<li><code>{to_html(command)}</code></li>" for command in commands)
        many = f"{len(commands)} commands" if len(commands) > 1 else "The command"
        parts.append(f"<details{' open' * (len(commands) < 3)}><summary>{many}</summary><ul>{listed}</ul></details>")
    if section.notes:
        listed = "".join(f"<li>{to_html(note)}</li>" for note in section.notes)
        parts.append(f"<details open><summary>Left out</summary><ul>{listed}</ul></details>")
    return f'<div class="provenance">{plain_table(table)}{"".join(parts)}</div>'


def _machine(machine: Any) -> str:
    if not isinstance(machine, Mapping):
        return _text(machine)
    parts = [_text(machine.get("processor")), _text(machine.get("system"))]
    cores, memory, gpus = number(machine.get("cores")), number(machine.get("memory_bytes")), machine.get("gpus")
    usable = number(machine.get("usable_cores"))  # older records have none
    some = f"{usable:g} of " if usable and cores and usable < cores else ""
    parts += [f"{some}{cores:g} cores"] if cores else []
    parts += [f"{memory / 2**30:.0f} GiB"] if memory else []
    parts += [str(gpu) for gpu in gpus] if isinstance(gpus, list) else []
    return ", ".join(part for part in parts if part)


def _versions(versions: Any) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items()) if isinstance(versions, Mapping) else ""


def _span(times: list[str]) -> str:
    known = sorted(time.replace("T", " ").replace("+00:00", " UTC") for time in times if time)
    if not known:
        return ""
    return known[0] if known[0] == known[-1] else f"{known[0]} to {known[-1]}"


def _text(value: Any) -> str:
    return "" if value is None else str(value)
