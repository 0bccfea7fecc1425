"""What a study shows, in sentences that the terminal and the page share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rueda.records.comparison import Comparison
from rueda.records.metric import MetricInfo
from rueda.records.recipe.recipe import Recipe
from rueda.records.study import BASELINE, Study, StudyRow, control_of, missing_control, remedies
from rueda.records.welch import MOST
from rueda.terminal.metrics import describe_kept, write_change, write_interval, write_value
from rueda.terminal.numbers import things


def describe_verdicts(metric: MetricInfo, tolerance: float) -> str:
    """Return what the three verdicts mean.

    >>> describe_verdicts(MetricInfo(name="accuracy", percent=True), 0.01)
    'kept: the whole 90 % interval (Welch) is at most 1 point lower; lost: none of it is; otherwise undecided'
    """
    kept = describe_kept(metric, tolerance)
    return f"kept: the whole 90 % interval (Welch) is {kept}; lost: none of it is; otherwise undecided"


def undecided(rows: Iterable[StudyRow]) -> str:
    """Name the undecided rows, with the number of seeds that would most likely decide each; empty if there are none.

    >>> row = StudyRow(name="lamb", summary="", workers=8, global_batch=64, epochs=3, updates=561, seconds=4.0,
    ...     images_per_second=9.0, rehearsed=True, verdict="undecided", interval=(-2.0, 1.0), seeds_to_decide=7)
    >>> undecided([row])
    'Undecided, with the seeds that would most likely decide at this spread and difference: lamb (7).'
    """
    chosen = [row for row in rows if row.verdict == "undecided"]
    told = [f"{row.name} ({row.seeds_to_decide or f'more than {MOST}'})" for row in chosen if row.interval is not None]
    alone = [row.name for row in chosen if row.interval is None]
    parts = []
    if told:
        seeds = "the seeds that would most likely decide at this spread and difference"
        parts.append(f"Undecided, with {seeds}: {', '.join(told)}.")
    if alone:
        parts.append(f"Undecided, since one seed shows no spread: {', '.join(alone)}; add --seeds 3.")
    return " ".join(parts)


def borrowed(rows: Iterable[StudyRow]) -> str:
    """Say that rows of one seed borrow a spread, if some do."""
    is_so = any(row.is_pooled for row in rows)
    return "A row of one seed borrows the spread that is pooled over the rows of several." if is_so else ""


def other_lengths(study: Study) -> str:
    """Say of AdaScale's rows how long they trained, and that their gain is a theory of SGD; empty without such rows.

    >>> row = StudyRow(name="adascale", summary="", workers=8, global_batch=64, epochs=14, updates=561, seconds=4.0,
    ...     images_per_second=9.0, rehearsed=True)
    >>> print(other_lengths(Study(task="", workers=8, epochs=4, rows=(row,), recipe="optimizer = 'adam'")))
    adascale ended at the end of its own clock, after 14 epochs instead of 4; its gain is derived for SGD, and with adam
    it has no theory.
    """
    rows = [row for row in study.rows if "adascale" in remedies(row.name)]
    told = [f"{row.name} ended at the end of its own clock, after {write_epochs(row)} instead of {study.epochs}"
            for row in rows if row.epochs != study.epochs]  # fmt: skip
    optimizer = Recipe.from_toml(study.recipe).optimizer
    if rows and optimizer != "sgd":
        told.append(f"its gain is derived for SGD, and with {optimizer} it has no theory")
    return f"{'; '.join(told)}." if told else ""


def write_epochs(row: StudyRow) -> str:
    """Write the epochs of a row, from the fewest to the most of its seeds."""
    found = row.epochs_range
    return things(row.epochs, "epoch") if found is None else f"{found[0]} to {found[1]} epochs"


def reported(study: Study, best: StudyRow) -> StudyRow:
    """Return the row whose figure stands for the best one: its repetition on fresh seeds, if there is one."""
    return study.confirmed(best) or best


def how_chosen(study: Study) -> str:
    """Say on which data the best row was chosen, and whether its figure comes from other seeds; empty for one row."""
    best, number = study.best(), len(study.candidates())
    if best is None or number < 2:
        return ""
    on = "test" if best.validation is None else "validation"
    confirmed = study.confirmed(best)
    if confirmed is not None:
        seeds = things(len(confirmed.seeds), "fresh seed")
        return f"{best.name} was chosen of {number} rows on {on} data; its figure is that of {seeds}."
    if best.validation is not None:
        return f"{best.name} was chosen of {number} rows on validation data."
    return (
        f"{best.name} was chosen of {number} rows on test data, where the best is too good by chance; "
        "--confirm repeats it with fresh seeds."
    )


def against_strongest(study: Study) -> str:
    """Compare the best row with the strongest row of one worker: what remains of its gain.

    The strongest row is chosen as the best one is, so that a remedy that helps one worker as well is no gain of many.
    """
    best, strongest, base = study.best(), study.strongest(), study.row(BASELINE)
    if best is None or strongest is None or best.workers == 1:
        return ""
    shown = reported(study, best)
    found = study.compare(shown, strongest)
    metric = study.metric
    first = "" if base is None or base is strongest else _gain(study.compare(shown, base), metric)
    number = len([row for row in study.rows if row.workers == 1])
    on = " on validation data" * (strongest.validation is not None)
    which = f"the strongest of {number} rows of one worker{on}" if number > 1 else "the only row of one worker"
    return (
        f"{shown.name} {write_value(metric, shown.value, shown.spread)} against {which}, {strongest.name} "
        f"{write_value(metric, strongest.value, strongest.spread)}: {describe(found, metric)}{first}."
    )


def describe(found: Comparison, metric: MetricInfo) -> str:
    """Write a change with its interval and verdict.

    >>> describe(Comparison(change=-0.3, interval=(-1.2, 0.6), verdict="undecided"), MetricInfo(name="a", percent=True))
    '−0.3 points (−1.2 to +0.6), undecided'
    """
    interval = "" if found.interval is None else f" ({write_interval(metric, found.interval)})"
    return f"{write_change(metric, found.change)}{' points' * metric.percent}{interval}, {found.verdict}"


def _gain(found: Comparison, metric: MetricInfo) -> str:
    """Write what the same row seems to gain over plain one worker."""
    return f" (over {BASELINE}: {write_change(metric, found.change)})"


def control_missing(study: Study) -> str:
    """Return a line if no row is the control of the best technique; otherwise return an empty text."""
    best = study.best()
    if best is None or any(row.name == control_of(best.name) for row in study.rows):
        return ""
    return missing_control(best.name)


def remarks(study: Study) -> Sequence[str]:
    """Return the sentences below the table of a study on a terminal."""
    parts = [
        against_strongest(study), control_missing(study), how_chosen(study), other_lengths(study),
        undecided(study.rows),
    ]  # fmt: skip
    return [part for part in parts if part]
