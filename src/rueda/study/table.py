"""The course's table, for a terminal, with what the course left out: test accuracy, spread, updates, the verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rueda.records.study import Study, StudyRow
from rueda.terminal.numbers import duration, fixed, points

if TYPE_CHECKING:
    from rich.table import Table

_STYLES = {"kept": "green", "lost": "red", "diverged": "bold red"}


def table_of(study: Study) -> Table:
    """Make a table that rich prints."""
    from rich.text import Text

    from rueda.terminal.table import make_table

    rehearsed = ", rehearsed" if any(row.rehearsed for row in study.rows) else ""
    return make_table(
        f"{study.task}, accuracy after {study.epochs} epochs: {study.workers:,} workers{rehearsed}",
        ("workers", "condition", "train %", "test %", "updates", "images/s", "time", "against one"),
        [
            (*_cells(row, study.epochs), Text(verdict(row), style=_STYLES.get(row.verdict or "", "")))
            for row in study.rows
        ],
        left=("condition", "against one"),
        caption=caption(study),
    )


def _cells(row: StudyRow, epochs: int) -> tuple[str, ...]:
    longer = f" ({row.epochs} epochs)" if row.epochs != epochs and not row.diverged else ""
    return (
        f"{row.workers:,}",
        row.name.replace("+", " + ") + longer,
        _accuracy(row.train_accuracy, row.train_accuracy_spread),
        _accuracy(row.test_accuracy, row.test_accuracy_spread),
        f"{row.updates:,}",
        f"{row.images_per_second:,.0f}",
        duration(row.seconds),
    )


def _accuracy(value: float | None, spread: float | None) -> str:
    return fixed(None if value is None else 100 * value, 1, None if spread is None else 100 * spread)


def verdict(row: StudyRow) -> str:
    """Say what became of one worker's accuracy."""
    if row.verdict == "diverged":
        return "diverged" if row.diverged == len(row.seeds) else f"diverged, {row.diverged} of {len(row.seeds)}"
    return "" if row.against_one_worker is None else f"{points(row.against_one_worker)} {row.verdict}"


def caption(study: Study) -> str:
    """Say what the figures are, in a line or two."""
    num_seeds = max((len(row.seeds) for row in study.rows), default=0)
    over = f"mean ± standard deviation over up to {num_seeds} seeds; " if num_seeds > 1 else ""
    return (
        f"{over}against one: points of test accuracy; kept: within 1 point of one worker, or above. Rehearsed: N "
        "virtual workers in one process, the numbers of N real ones; images/s and time are this machine's."
    )
