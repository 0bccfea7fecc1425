"""The table of a study on a terminal: accuracies with their spread, updates, speed, and the verdict on each row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rueda.records.metric import ACCURACY, MetricInfo
from rueda.records.study import Study, StudyRow, control_of, missing_control
from rueda.terminal.metrics import describe_change, describe_kept, write_change, write_number
from rueda.terminal.numbers import duration, things

if TYPE_CHECKING:
    from rueda.terminal.table import TextTable

_STYLES = {"kept": "green", "lost": "red", "diverged": "bold red"}


def table_of(study: Study) -> TextTable:
    """Return the table; on a narrow terminal the columns that matter least for a rehearsed row are left out."""
    from rich.text import Text

    from rueda.terminal.table import TextTable

    metric, speed = study.metric, f"{study.unit}/s"
    heads = ("train %", "test %") if metric.percent else (f"train {metric.name}", f"test {metric.name}")
    rehearsed = ", rehearsed" if any(row.rehearsed for row in study.rows) else ""
    how_long = f"after {things(study.epochs, 'epoch')}"
    return TextTable(
        f"{study.task}, {metric.name} {how_long}: {things(study.workers, 'worker')}{rehearsed}",
        ("condition", *heads, "updates", speed, "time", "against one"),
        [
            (*_cells(row, study), Text(verdict(row, metric), style=_STYLES.get(row.verdict or "", "")))
            for row in study.ordered()
        ],
        left=("condition", "against one"),
        optional=(speed, "time", "updates", heads[0]),
        caption=caption(study),
    )


def _cells(row: StudyRow, study: Study) -> tuple[str, ...]:
    longer = f" ({row.epochs} epochs)" if row.epochs != study.epochs and not row.diverged else ""
    return (
        row.name.replace("+", " + ") + longer,
        write_number(study.metric, row.training, row.training_spread),
        write_number(study.metric, row.value, row.spread),
        f"{row.updates:,}",
        f"{row.images_per_second:,.0f}",
        duration(row.seconds),
    )


def verdict(row: StudyRow, metric: MetricInfo = ACCURACY) -> str:
    """Return how many seeds of a row diverged, or else its difference from one worker and whether it is kept."""
    if row.verdict == "diverged":
        return "diverged" if row.diverged == len(row.seeds) else f"diverged, {row.diverged} of {len(row.seeds)}"
    return "" if row.against_one_worker is None else f"{write_change(metric, row.against_one_worker)} {row.verdict}"


def control_missing(study: Study) -> str:
    """Return a line, as on the page, if no row is the control of the best technique; otherwise return an empty text."""
    many = [row for row in study.rows if row.workers > 1 and row.name != "naive" and row.verdict in ("kept", "lost")]
    best = max(many, key=lambda row: study.metric.score(row.deciding or 0.0), default=None)
    if best is None or any(row.name == control_of(best.name) for row in study.rows):
        return ""
    return missing_control(best.name)


def caption(study: Study) -> str:
    """Explain the columns."""
    seeds = {len(row.seeds) for row in study.rows} or {0}
    most = f"{'up to ' * (len(seeds) > 1)}{max(seeds)} seeds"
    over = f"mean ± standard deviation over {most}; " if max(seeds) > 1 else ""
    return (
        f"{over}against one: {describe_change(study.metric)} against one worker; kept: "
        f"{describe_kept(study.metric, study.tolerance)}. Rehearsed: N virtual workers in one process compute what N "
        f"real ones would; {study.unit}/s and time are those of this machine."
    )
