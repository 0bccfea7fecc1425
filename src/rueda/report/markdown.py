"""The tables of a report as Markdown, for a README, an issue or a paper's supplement.

They are those of the page, from the same files: the table of techniques first, then what other files say.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rueda.report.collect import collect
from rueda.report.escape import to_html
from rueda.report.model import Entry, Section, Table
from rueda.terminal.numbers import NONE, count, percent, points

HEADS = ("workers", "condition", "test accuracy", "against one", "training accuracy", "updates", "seeds")


def markdown_tables(paths: Sequence[Path]) -> str:
    """Write the tables of runs, studies and other records.

    Args:
        paths: folders as for the page.
    """
    return to_markdown(collect(paths))


def to_markdown(sections: Sequence[Section]) -> str:
    """Write the tables of some sections."""
    return "\n".join(_section(section) for section in sections)


def _section(section: Section) -> str:
    blocks = [f"## {_cell(section.title)}\n"]
    if section.entries:
        blocks.append(study_table(section.entries))
    for table in section.tables:
        blocks += [f"### {_cell(table.title)}\n", plain(table)]
        blocks += [f"{_cell(table.note)}\n"] if table.note else []
    return "\n".join(blocks)


def study_table(entries: Sequence[Entry]) -> str:
    """Write the table of techniques: one worker first, then the best of many.

    >>> one = Entry(name="one-worker", workers=1, test_accuracy=0.693, train_accuracy=0.708, updates=1164)
    >>> print(study_table([one]).splitlines()[2])
    | 1 | one-worker | 69.3 % | – | 70.8 % | 1,164 | 1 |
    """
    many = sorted(
        (one for one in entries if one.workers != 1),
        key=lambda one: -1.0 if one.diverged or one.test_accuracy is None else one.test_accuracy, reverse=True,
    )  # fmt: skip
    alone = sorted((one for one in entries if one.workers == 1), key=lambda one: one.role != "base")
    rows = [_row(one) for one in [*alone, *many]]
    return _table(HEADS, rows, left=(1, 3))


def plain(table: Table) -> str:
    """Write a plain table; what is a number stands on the right."""
    texts = [[cell if isinstance(cell, str) else cell[1] for cell in row] for row in table.rows]
    left = [index for index in range(len(table.heads)) if any(isinstance(row[index], str) for row in table.rows)]
    return _table(table.heads, texts, left=left)


def _row(entry: Entry) -> list[str]:
    if entry.diverged:
        some = entry.num_diverged < entry.num_seeds and entry.test_accuracy is not None
        verdict = f"diverged, {entry.num_diverged} of {entry.num_seeds} seeds" if some else "diverged"
    else:
        verdict = NONE if entry.against is None else f"{points(entry.against)}, {entry.verdict}"
    return [
        count(entry.workers) + ", rehearsed" * entry.rehearsed,
        entry.name,
        percent(entry.test_accuracy, entry.test_accuracy_spread),
        verdict,
        percent(entry.train_accuracy, entry.train_accuracy_spread),
        count(entry.updates),
        count(entry.num_seeds),
    ]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int]) -> str:
    rule = ["---" if index in left else "---:" for index in range(len(heads))]
    lines = [heads, rule, *rows]
    return "".join(
        "| " + " | ".join(cell if cells is rule else _cell(cell) for cell in cells) + " |\n" for cells in lines
    )


def _cell(text: str) -> str:
    """Keep a text a text: no bar ends the cell, no sign begins a tag or a link.

    >>> _cell("a|b <i>")
    'a\\\\|b &lt;i&gt;'
    """
    safe = to_html(" ".join(text.split())).replace("&#x27;", "'")
    return safe.replace("|", "\\|").replace("[", "\\[")
