"""The tables of a report as Markdown, for a README, an issue or a paper's supplement.

They are the tables of the page: for each section the table of techniques or runs, then the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from rueda.records.metric import ACCURACY, MetricInfo
from rueda.report.collect import collect
from rueda.report.escape import to_html
from rueda.report.model import Cell, Entry, Section, Table, field_as
from rueda.terminal.metrics import write_change, write_interval, write_value
from rueda.terminal.numbers import NONE, count, counts


def markdown_tables(paths: Sequence[Path]) -> str:
    """Return the tables of runs, studies and other records as Markdown.

    Args:
        paths: as for :func:`rueda.report.write_report`.
    """
    return "\n".join(_section(section) for section in collect(paths))


def _section(section: Section) -> str:
    blocks = [f"## {_cell(section.title)}\n"]
    if section.entries:
        blocks.append(study_table(section.entries, section.metric))
    for table in filter(lambda table: table.rows, section.tables):
        blocks += [f"### {_cell(table.title)}\n", plain(table)]
        blocks += [f"{_cell(table.note)}\n"] if table.note else []
    return "\n".join(blocks)


def study_table(entries: Sequence[Entry], metric: MetricInfo = ACCURACY) -> str:
    """Return the table of techniques: one worker first, then the others, the best of them first.

    >>> one = Entry(name="one-worker", workers=1, test=0.693, train=0.708, updates=1164)
    >>> print(study_table([one]).splitlines()[2])
    | 1 | one-worker | 69.3 % | – | 70.8 % | 1,164 | 1 |
    """
    many = sorted(
        (one for one in entries if one.workers != 1),
        key=lambda one: -math.inf if one.diverged or one.test is None else metric.score(one.test), reverse=True,
    )  # fmt: skip
    alone = sorted((one for one in entries if one.workers == 1), key=lambda one: one.role != "base")
    columns: dict[str, Callable[[Entry], Cell]] = {
        "workers": lambda one: (one.workers, count(one.workers) + ", rehearsed" * one.rehearsed),
        "condition": lambda one: one.name,
        f"test {metric.name}": lambda one: (one.test, write_value(metric, one.test, one.test_spread)),
        "against one": lambda one: _against(one, metric),
        f"training {metric.name}": lambda one: (one.train, write_value(metric, one.train, one.train_spread)),
        "updates": lambda one: (one.updates, counts(one.updates, one.updates_range)),
        "seeds": field_as("num_seeds", count),
    }
    return plain(Table.of("", [*alone, *many], columns))


def _against(entry: Entry, metric: MetricInfo) -> str:
    if not entry.diverged:
        if entry.against is None:
            return NONE
        interval = "" if entry.interval is None else f" ({write_interval(metric, entry.interval)})"
        return f"{write_change(metric, entry.against)}{interval}, {entry.verdict}"
    some = entry.num_diverged < entry.num_seeds and entry.test is not None
    return f"diverged, {entry.num_diverged} of {entry.num_seeds} seeds" if some else "diverged"


def plain(table: Table) -> str:
    """Return a plain table in which columns of numbers are aligned to the right."""
    lines = [[_cell(text) for text in row] for row in (table.heads, *table.texts)]
    lines.insert(1, ["---" if head in table.left else "---:" for head in table.heads])
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _cell(text: str) -> str:
    """Escape a text for a cell: a bar must not end the cell, and no character may start a tag or a link.

    >>> _cell("a|b <i>")
    'a\\\\|b &lt;i&gt;'
    """
    safe = to_html(" ".join(text.split())).replace("&#x27;", "'")
    return safe.replace("|", "\\|").replace("[", "\\[")
