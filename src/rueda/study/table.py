"""The table of a study on a terminal: accuracies with their spread, updates, speed, and the verdict on each row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rueda.records.metric import ACCURACY, MetricInfo
from rueda.records.study import Study, StudyRow
from rueda.terminal.metrics import describe_change, write_change, write_interval, write_number
from rueda.terminal.numbers import counts, duration, things
from rueda.terminal.study_words import borrowed, describe_verdicts, write_epochs

if TYPE_CHECKING:
    from rueda.terminal.table import TextTable

_STYLES = {"kept": "green", "lost": "red", "undecided": "yellow", "diverged": "bold red"}


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
    longer = f" ({write_epochs(row)})" if row.epochs != study.epochs and not row.diverged else ""
    return (
        row.name.replace("+", " + ") + longer,
        write_number(study.metric, row.training, row.training_spread),
        write_number(study.metric, row.value, row.spread),
        counts(row.updates, row.updates_range),
        f"{row.images_per_second:,.0f}",
        duration(row.seconds),
    )


def verdict(row: StudyRow, metric: MetricInfo = ACCURACY) -> str:
    """Return how many seeds of a row diverged, or else its difference from one worker, the verdict and the interval."""
    if row.verdict == "diverged":
        return "diverged" if row.diverged == len(row.seeds) else f"diverged, {row.diverged} of {len(row.seeds)}"
    if row.against_one_worker is None:
        return ""
    interval = "one seed" if row.interval is None else write_interval(metric, row.interval)
    return f"{write_change(metric, row.against_one_worker)} {row.verdict} ({interval})"


def caption(study: Study) -> str:
    """Explain the columns."""
    seeds = {len(row.seeds) for row in study.rows} or {0}
    most = f"{'up to ' * (len(seeds) > 1)}{max(seeds)} seeds"
    over = f"mean ± standard deviation over {most}; " if max(seeds) > 1 else ""
    pooled = f"{borrowed(study.rows)} ".lstrip()
    return (
        f"{over}against one: {describe_change(study.metric)} against one worker; "
        f"{describe_verdicts(study.metric, study.tolerance)}. {pooled}Rehearsed: N virtual workers in one "
        f"process compute what N real ones would; {study.unit}/s and time are those of this machine."
    )
