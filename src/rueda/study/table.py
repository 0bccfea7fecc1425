"""The table of a study on a terminal: accuracies with their spread, updates, speed, and the verdict on each row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rueda.records.study import Study, StudyRow, control_of, missing_control
from rueda.terminal.numbers import duration, fixed, points, things

if TYPE_CHECKING:
    from rueda.terminal.table import TextTable

_STYLES = {"kept": "green", "lost": "red", "diverged": "bold red"}


def table_of(study: Study) -> TextTable:
    """Return the table; on a narrow terminal the columns that matter least for a rehearsed row are left out."""
    from rich.text import Text

    from rueda.terminal.table import TextTable

    rehearsed = ", rehearsed" if any(row.rehearsed for row in study.rows) else ""
    return TextTable(
        f"{study.task}, accuracy after {things(study.epochs, 'epoch')}: {things(study.workers, 'worker')}{rehearsed}",
        ("condition", "train %", "test %", "updates", "images/s", "time", "against one"),
        [
            (*_cells(row, study.epochs), Text(verdict(row), style=_STYLES.get(row.verdict or "", "")))
            for row in study.ordered()
        ],
        left=("condition", "against one"),
        optional=("images/s", "time", "updates", "train %"),
        caption=caption(study),
    )


def _cells(row: StudyRow, epochs: int) -> tuple[str, ...]:
    longer = f" ({row.epochs} epochs)" if row.epochs != epochs and not row.diverged else ""
    return (
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
    """Return how many seeds of a row diverged, or its test accuracy minus one worker's, in points, and kept or lost."""
    if row.verdict == "diverged":
        return "diverged" if row.diverged == len(row.seeds) else f"diverged, {row.diverged} of {len(row.seeds)}"
    return "" if row.against_one_worker is None else f"{points(row.against_one_worker)} {row.verdict}"


def control_missing(study: Study) -> str:
    """Return a line, as on the page, if no row is the control of the best technique; otherwise return an empty text."""
    many = [row for row in study.rows if row.workers > 1 and row.name != "naive" and row.verdict in ("kept", "lost")]
    best = max(many, key=lambda row: row.test_accuracy or 0.0, default=None)
    if best is None or any(row.name == control_of(best.name) for row in study.rows):
        return ""
    return missing_control(best.name)


def caption(study: Study) -> str:
    """Explain the columns."""
    seeds = {len(row.seeds) for row in study.rows} or {0}
    most = f"{'up to ' * (len(seeds) > 1)}{max(seeds)} seeds"
    over = f"mean ± standard deviation over {most}; " if max(seeds) > 1 else ""
    return (
        f"{over}against one: points of test accuracy against one worker; kept: at most 1 point lower. Rehearsed: N "
        "virtual workers in one process compute what N real ones would; images/s and time are those of this machine."
    )
