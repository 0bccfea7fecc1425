"""The style of the table's rows in the figures: colour, dash and shortened names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rueda.report.escape import Label, bold, lines
from rueda.report.model import Entry, Line, Section
from rueda.report.words import describe_recipe

_MARKED = {"base": ("ink", "solid"), "naive": ("red", "solid"), "best": ("blue", "solid"), "control": ("ink", "dash")}
_COLOURS = ("orange", "green", "purple", "sky")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")


def styles(section: Section) -> list[tuple[str, str]]:
    """Return a colour and a dash for each row of the table; the combinations differ for 24 rows.

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


def brief(text: str, most: int) -> str:
    """Shorten a long name by leaving out its middle, since names often differ at the end.

    >>> brief("lamb", 10), brief("batch-norm-longer-training-2", 10)
    ('lamb', 'batch-…g-2')
    """
    if len(text) <= most:
        return text
    tail = most // 3
    return text[: most - tail - 1] + "…" + text[-tail:]


def tick_name(entry: Entry, *, is_narrow: bool) -> Label:
    """Return a row's name for an axis: on a phone a line for each part of ``a+b``; an italic r means rehearsed."""
    parts = [brief(part, 17) for part in brief(entry.name, 60).split("+")] if is_narrow else [brief(entry.name, 44)]
    name = lines(parts[0], *(f"+{part}" for part in parts[1:]))
    return Label(f"{name} <i>r</i>") if entry.rehearsed else name


def run_line(section: Section, line: Line) -> dict[str, Any]:
    """Return the trace of a run without its data: name, style, and the recipe for the hover text.

    ``meta[0]`` is the hover text; ``meta[1]`` is reserved for the unit of the horizontal axis.
    """
    entry, (colour, dash) = section.entries[line.entry], styles(section)[line.entry]
    is_other, is_crowded = entry.role == "other", len(section.entries) > 6
    is_shared = sum(other.entry == line.entry for other in section.lines) > 1
    told = [] if line.recipe is None else [*describe_recipe(line.recipe), f"seed {line.recipe.seed}"]
    told += ["rehearsed in one process"] * line.rehearsed
    return {
        "type": "scatter", "row": line.entry, "name": brief(entry.name, 60) + " (rehearsed)" * entry.rehearsed,
        "line": {
            "color": f"@{colour}", "dash": dash,
            "width": (1.6 if is_crowded else 2) if is_other else 2.2 if is_shared else 3,
        },
        "marker": {"size": 4 if is_other else 6}, "opacity": 0.75 if is_other and is_crowded else 1,
        "meta": [lines(bold(entry.name), *told, *["diverged"] * line.diverged), ""],
    }  # fmt: skip


def first_of_rows(shown: Sequence[Line]) -> dict[int, Line]:
    """Return the first run of each row, since the legend shows each row once."""
    return {line.entry: line for line in reversed(shown)}
