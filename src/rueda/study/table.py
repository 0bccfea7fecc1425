"""The course's table, for a terminal, with what the course left out: test accuracy, spread, updates, the verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rueda.records.study import Study, StudyRow

if TYPE_CHECKING:
    from rich.table import Table

_STYLES = {"kept": "green", "lost": "red", "diverged": "bold red"}


def table_of(study: Study) -> Table:
    """Make a table that rich prints."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    rehearsed = ", rehearsed" if any(row.rehearsed for row in study.rows) else ""
    table = Table(
        title=Text(f"{study.task}, accuracy after {study.epochs} epochs: {study.workers:,} workers{rehearsed}"),
        caption=Text(caption(study)), caption_justify="left", box=SIMPLE_HEAD, pad_edge=False,
        padding=(0, 1, 0, 0),
    )  # fmt: skip
    cells = [_cells(row, study.epochs) for row in study.rows]
    headings = ("workers", "condition", "train %", "test %", "updates", "images/s", "time", "against one")
    for number, heading in enumerate(headings):
        # Figures are never cut; where the terminal is narrow, headings and conditions take two lines.
        width = max((len(row[number]) for row in cells), default=0)
        width = 14 if heading == "condition" else width if heading == "against one" else max(width, len(heading))
        left = heading in ("condition", "against one")
        table.add_column(heading, justify="left" if left else "right", min_width=width)
    for row, texts in zip(study.rows, cells, strict=True):
        *figures, last = (Text(text) for text in texts)
        table.add_row(*figures, Text(last.plain, style=_STYLES.get(row.verdict or "", "")))
    return table


def _cells(row: StudyRow, epochs: int) -> tuple[str, ...]:
    longer = f" ({row.epochs} epochs)" if row.epochs != epochs and not row.diverged else ""
    return (
        f"{row.workers:,}",
        row.name.replace("+", " + ") + longer,
        accuracy(row.train_accuracy, row.train_accuracy_spread),
        accuracy(row.test_accuracy, row.test_accuracy_spread),
        f"{row.updates:,}",
        f"{row.images_per_second:,.0f}",
        f"{row.seconds:,.{0 if row.seconds >= 10 else 1}f} s",
        verdict(row),
    )


def accuracy(value: float | None, spread: float | None) -> str:
    """Write an accuracy in per cent.

    >>> accuracy(0.8712, 0.0041), accuracy(0.8712, None), accuracy(None, None)
    ('87.1 ± 0.4', '87.1', '-')
    """
    if value is None:
        return "-"
    return f"{100 * value:.1f}" if spread is None else f"{100 * value:.1f} ± {100 * spread:.1f}"


def verdict(row: StudyRow) -> str:
    """Say what became of one worker's accuracy."""
    if row.verdict == "diverged":
        return "diverged" if row.diverged == len(row.seeds) else f"diverged, {row.diverged} of {len(row.seeds)}"
    return "" if row.against_one_worker is None else f"{row.against_one_worker:+.1f} {row.verdict}"


def caption(study: Study) -> str:
    """Say what the figures are, in a line or two."""
    num_seeds = max((len(row.seeds) for row in study.rows), default=0)
    over = f"mean ± standard deviation over up to {num_seeds} seeds; " if num_seeds > 1 else ""
    return (
        f"{over}against one: points of test accuracy; kept: within 1 point of one worker, or above. Rehearsed: N "
        "virtual workers in one process, the numbers of N real ones; images/s and time are this machine's."
    )
