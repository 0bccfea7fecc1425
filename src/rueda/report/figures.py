"""What the figures need, as data for the page's script; a figure without data is not made."""

from __future__ import annotations

from typing import Any

from rueda.report.model import Entry, Line, Section
from rueda.terminal.numbers import percent, points

_MARKED = {"base": ("ink", "solid"), "naive": ("red", "solid"), "best": ("blue", "solid")}
_COLOURS = ("orange", "green", "purple", "sky")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")

TITLES = {
    "techniques": "What each technique keeps",
    "progress": "How accuracy grew",
    "rate": "Learning rate",
    "batch": "Global batch",
    "speed": "Images per second on this machine",
    "throughput": "Throughput against local batch",
    "steps": "Updates to the target, against batch size",
    "surface": "The loss surface of the linear model",
    "contours": "The same from above",
}


def styles(section: Section) -> list[tuple[str, str]]:
    """Give each row of the table a colour and a dash; together they differ for 23 rows.

    >>> styles(Section(title="", task="", entries=[Entry(name="one-worker", role="base"), Entry(name="lars")]))
    [('ink', 'solid'), ('orange', 'solid')]
    """
    colours = _COLOURS if any(entry.role != "other" for entry in section.entries) else ("blue", "red", *_COLOURS)
    chosen, others = [], 0
    for entry in section.entries:
        if entry.role in _MARKED:
            chosen.append(_MARKED[entry.role])
        else:
            chosen.append((colours[others % len(colours)], _DASHES[others // len(colours) % len(_DASHES)]))
            others += 1
    return chosen


def figure_data(section: Section) -> dict[str, Any]:
    """Give the data of a section's figures."""
    rows = [
        {
            "name": entry.name,
            "colour": colour,
            "dash": dash,
            "role": entry.role,
            "rehearsed": entry.rehearsed,
            "workers": entry.workers,
            "verdict": entry.verdict,
            "accuracy": None if entry.diverged else entry.test_accuracy,
            "spread": entry.test_accuracy_spread,
            "speed": entry.images_per_second,
            "about": _about(entry),
        }
        for entry, (colour, dash) in zip(section.entries, styles(section), strict=True)
    ]
    lines = [
        {
            "row": line.entry,
            "about": _describe(line),
            "rehearsed": line.rehearsed,
            "diverged": line.diverged,
            "progress": line.progress,
            "schedule": line.schedule,
        }
        for line in section.lines
    ]
    plots = {
        plot.name: {
            "traces": plot.traces,
            "layout": plot.layout,
            "height": plot.height,
            "views": [{"visible": view.visible, "changes": view.changes} for view in plot.views],
            "narrow": plot.narrow,
            "narrow_height": plot.narrow_height or plot.height,
        }
        for plot in section.plots
    }
    data: dict[str, Any] = {"plots": plots}
    data |= {"rows": rows, "lines": lines, "throughput": section.throughput, "steps": section.steps, "gd": section.gd}
    return {**data, "figures": [*figure_names(section), *plots]}


def figure_names(section: Section) -> list[str]:
    """Name the figures for which there is data, in the page's order."""
    gd = section.gd or {}
    measured = [entry for entry in section.entries if entry.test_accuracy is not None or entry.diverged]
    there = {
        "techniques": section.is_study and len(measured) > 1,
        "progress": any(_has(line, "progress", "accuracy", "loss") for line in section.lines),
        "rate": any(_has(line, "schedule", "rate") for line in section.lines),
        "batch": any(_has(line, "schedule", "batch") for line in section.lines),
        "speed": any(entry.images_per_second is not None for entry in section.entries),
        "throughput": section.throughput is not None,
        "steps": section.steps is not None,
        "surface": gd.get("moments") is not None,
        "contours": gd.get("moments") is not None,
    }
    return [name for name in TITLES if there[name]]


def _has(line: Line, part: str, *words: str) -> bool:
    return any(name.endswith(words) for name in getattr(line, part))


def _about(entry: Entry) -> list[str]:
    who = "1 worker" if entry.workers == 1 else f"{entry.workers} workers"
    told = [entry.summary, f"{who}{', rehearsed' * entry.rehearsed}" if entry.workers else ""]
    told.append(
        "diverged" if entry.diverged else f"test accuracy {percent(entry.test_accuracy, entry.test_accuracy_spread)}"
    )
    told.append("" if entry.against is None else f"{points(entry.against)} points against one worker: {entry.verdict}")
    return [text for text in told if text]


def _describe(line: Line) -> list[str]:
    seed = [] if line.seed is None else [f"seed {line.seed}"]
    return [*line.essentials, *seed, *["rehearsed: one process was all the workers"] * line.rehearsed]
