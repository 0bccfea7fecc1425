"""What was run where: machines, versions, commits, commands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rueda.report.escape import to_html
from rueda.report.model import Section
from rueda.terminal.numbers import number


def provenance(section: Section) -> str:
    """Write the last part of a section: a row for each distinct machine and version, then commands and notes."""
    abouts = [*section.environments, *(line.environment for line in section.lines)]
    places: dict[tuple[str, str, str], list[str]] = {}
    for about in abouts:
        place = (_machine(about.get("machine")), _versions(about.get("versions")), _text(about.get("commit")))
        if any(place):
            places.setdefault(place, []).append(_text(about.get("time")))
    rows = "".join(
        f"<tr><td>{to_html(machine)}</td><td>{to_html(versions)}</td><td><code>{to_html(commit)}</code></td>"
        f"<td>{to_html(_span(times))}</td></tr>"
        for (machine, versions, commit), times in places.items()
    )
    commands = list(dict.fromkeys(text for about in abouts if (text := _text(about.get("command")))))
    parts = []
    if rows:
        heads = "".join(f'<th scope="col">{name}</th>' for name in ("machine", "versions", "commit", "when"))
        parts.append(
            '<div class="box" tabindex="0" role="region" aria-label="table: where it was run">'
            f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
        )
    if commands:
        listed = "".join(f"<li><code>{to_html(command)}</code></li>" for command in commands)
        many = f"{len(commands)} commands" if len(commands) > 1 else "The command"
        parts.append(f"<details{' open' * (len(commands) < 3)}><summary>{many}</summary><ul>{listed}</ul></details>")
    if section.notes:
        listed = "".join(f"<li>{to_html(note)}</li>" for note in section.notes)
        parts.append(f"<details open><summary>Left out</summary><ul>{listed}</ul></details>")
    return f'<div class="provenance"><h3>What was run where</h3>{"".join(parts)}</div>' if parts else ""


def _machine(machine: Any) -> str:
    if not isinstance(machine, Mapping):
        return _text(machine)
    parts = [_text(machine.get("processor")), _text(machine.get("system"))]
    cores, memory, gpus = number(machine.get("cores")), number(machine.get("memory_bytes")), machine.get("gpus")
    parts += [f"{cores:g} cores"] if cores else []
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
