"""Tables for the terminal, in which no word and no number is ever cut.

If a table is wider than the terminal, three measures are taken in this order until it fits:

1. headings are broken between words into several lines;
2. ``optional`` columns are left out, and the caption names them, as long as the table would need text cells of more
   than two lines to fit;
3. text cells are broken into as many lines as necessary.

A table that still does not fit is printed as wide as its longest words and numbers require. In a pipe or a file the
width is not limited, unless the variable ``COLUMNS`` limits it.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table
    from rich.text import Text

_UNLIMITED = 10_000
_TEXT_WIDTH = 80  # width of title and caption if the table is narrower


@dataclass(frozen=True)
class TextTable:
    """A table that chooses its columns and their widths for the console that prints it.

    Args:
        title: text above the table.
        headings: the headings of the columns, all different.
        rows: each cell is a string, printed literally (not as rich markup), or a coloured ``Text`` of rich.
        left: headings of the columns of text, which are left-aligned and whose cells may take several lines.
        optional: headings of the columns that may be left out on a narrow terminal, the least important first.
        caption: text below the table.
        bold: indices of the rows that are printed in bold.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str | Text]]
    left: Collection[str] = ()
    optional: Sequence[str] = ()
    caption: str = ""
    bold: Collection[int] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the title, the table fitted to the width of the console, and the caption."""
        from rich.text import Text

        table, left_out = self, list[str]()
        for heading in self.optional:
            if table._widths(options.max_width, num_lines=2) is not None:
                break
            table = table._without(heading)
            left_out.append(heading)
        widths = table._widths(options.max_width, num_lines=2) or table._widths(options.max_width) or table._least()
        width = max(_total(widths), min(options.max_width, _TEXT_WIDTH))
        yield from console.render(Text(self.title, style="table.title"), options.update(width=width))
        yield from console.render(table._rich(widths), options.update(width=width))
        also = f"A wider terminal also shows: {', '.join(reversed(left_out))}." if left_out else ""
        if caption := " ".join(filter(None, (self.caption, also))):
            yield from console.render(Text(caption, style="table.caption"), options.update(width=width))

    def _without(self, heading: str) -> TextTable:
        kept = [number for number, name in enumerate(self.headings) if name != heading]
        rows = [[row[number] for number in kept] for row in self.rows]
        return replace(self, headings=[self.headings[number] for number in kept], rows=rows)

    def _cells(self, number: int) -> list[str]:
        return [str(row[number]) for row in self.rows]

    def _least(self, num_lines: int | None = None) -> list[int]:
        """Return the least width of each column at which text cells take at most ``num_lines`` lines."""
        least = []
        for number, heading in enumerate(self.headings):
            cells = self._cells(number)
            if heading in self.left:
                width = _longest(word for cell in cells for word in cell.split())
                while num_lines and any(len(textwrap.wrap(cell, max(width, 1))) > num_lines for cell in cells):
                    width += 1
            else:
                width = _longest(cells)
            least.append(max(width, _longest(heading.split())))
        return least

    def _widths(self, room: int, num_lines: int | None = None) -> list[int] | None:
        """Return the widths of the columns, breaking headings first and then text cells; None if they do not fit."""
        least = self._least(num_lines)
        if _total(least) > room:
            return None
        unbroken = [max(width, _longest(self._cells(number))) for number, width in enumerate(least)]
        lines = [_longest(heading.splitlines()) for heading in self.headings]
        widths = [max(pair) for pair in zip(unbroken, lines, strict=True)]
        for goal in (unbroken, least):
            while _total(widths) > room and widths != goal:
                widest = max(range(len(widths)), key=lambda number: widths[number] - goal[number])
                widths[widest] -= 1
        return widths

    def _rich(self, widths: Sequence[int]) -> Table:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for heading, width in zip(self.headings, widths, strict=True):
            table.add_column(Text(heading), justify="left" if heading in self.left else "right", width=width)
        for number, row in enumerate(self.rows):
            cells = (Text(cell) if isinstance(cell, str) else cell for cell in row)
            table.add_row(*cells, style="bold" if number in self.bold else "")
        return table


def print_table(table: TextTable) -> None:
    """Print a table to standard output."""
    from rich.console import Console

    console = Console(width=None if _is_limited() else _UNLIMITED)
    if sys.stdout.isatty():
        console.print(table, crop=False)
        return
    with console.capture() as captured:
        console.print(table, crop=False)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def print_prose(text: str, *, indent: str = "") -> None:
    """Print a paragraph, broken between words where it is wider than the terminal; its later lines are indented."""
    width = shutil.get_terminal_size().columns if _is_limited() else _UNLIMITED
    print(textwrap.fill(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False))


def _is_limited() -> bool:
    return sys.stdout.isatty() or "COLUMNS" in os.environ


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * (len(widths) - 1)


def _longest(texts: Collection[str] | Iterator[str]) -> int:
    return max((len(text) for text in texts), default=0)
