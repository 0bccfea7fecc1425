"""One look for every table on a terminal: a title, headings, a line a row."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

_WORDS_WIDTH = 14


def make_table(
    title: str,
    headings: Sequence[str],
    rows: Sequence[Sequence[str | Text]],
    *,
    left: Collection[str] = (),
    caption: str = "",
    bold: Collection[int] = (),
) -> Table:
    """Make a table that rich prints. Figures are never cut: on a narrow terminal, headings and words take two lines.

    Args:
        title: stands above the table.
        headings: of the columns.
        rows: cells are texts, in which brackets are only brackets, or rich's own ``Text`` with a colour.
        left: headings of the columns that hold words, not figures; a cell of these may take several lines.
        caption: stands below the table.
        bold: numbers of the rows that stand out.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(title), caption=Text(caption) if caption else None, caption_justify="left", box=SIMPLE_HEAD,
        pad_edge=False, padding=(0, 1, 0, 0),
    )  # fmt: skip
    for number, heading in enumerate(headings):
        longest = max((len(row[number]) for row in rows), default=0)
        word = max((len(word) for word in heading.split()), default=0)
        width = max(word, min(longest, _WORDS_WIDTH) if heading in left else longest)
        table.add_column(heading, justify="left" if heading in left else "right", min_width=width)
    for number, row in enumerate(rows):
        cells = (Text(cell) if isinstance(cell, str) else cell for cell in row)
        table.add_row(*cells, style="bold" if number in bold else "")
    return table


def print_table(table: Table) -> None:
    """Print a table to standard output."""
    from rich.console import Console

    Console().print(table)
