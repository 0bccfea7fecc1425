"""The tables as plain HTML: they need no script to be read; with it, a click on a heading sorts them."""

from __future__ import annotations

from collections.abc import Callable

from rueda.records.metric import ACCURACY, LOSS, MetricInfo
from rueda.report.escape import to_html
from rueda.report.model import Cell, Entry, Section, Table
from rueda.terminal.metrics import write_change, write_interval, write_value
from rueda.terminal.numbers import NONE, count, counts, duration, percent, things
from rueda.terminal.study_words import describe_verdicts

REHEARSED = '<span class="tag" title="one process computed all workers in turn">rehearsed</span>'
_VERDICTS = {"kept": "✓ kept", "lost": "✗ lost", "undecided": "? undecided", "diverged": "∞ diverged"}


def _name(entry: Entry) -> str:
    tag = f" {REHEARSED}" if entry.rehearsed else ""
    summary = f"<small>{to_html(entry.summary)}</small>" if entry.summary else ""
    return f"<b>{to_html(entry.name)}</b>{tag}{summary}"


def _remarked(shown: str, remark: str, is_remarked: bool) -> str:
    """Return a value with a remark below it, such as that a rehearsal's speed is that of one process."""
    return to_html(shown) + f"<small>{remark}</small>" * is_remarked


def _of_machine(entry: Entry, value: float | None, write: Callable[[float], str]) -> str:
    return NONE if value is None else _remarked(write(value), "one process", entry.rehearsed)


def _test(entry: Entry, metric: MetricInfo) -> str:
    shown = write_value(metric, entry.test, entry.test_spread)
    return _remarked(shown, "without diverged seeds", entry.diverged and entry.test is not None)


def _verdict(entry: Entry, metric: MetricInfo) -> str:
    """Write the points above or below one worker, the verdict and, below them, the interval: one column for a phone."""
    if entry.verdict is None:
        return "baseline" if entry.role == "base" else write_change(metric, entry.against)
    shown = "" if entry.diverged else f"{write_change(metric, entry.against)} "
    some = 0 < entry.num_diverged < entry.num_seeds
    which = f"<small>{entry.num_diverged} of {entry.num_seeds} seeds</small>" if some else ""
    if not entry.diverged:
        interval = "one seed" if entry.interval is None else write_interval(metric, entry.interval)
        which = f"<small>{interval}</small>"
    return f'{shown}<span class="verdict {entry.verdict}">{_VERDICTS[entry.verdict]}</span>{which}'


_Columns = dict[str, tuple[str, Callable[[Entry], str]]]
"""by heading, the field by which a column sorts, and the function that writes its cells"""


def _columns(section: Section) -> _Columns:
    metric = section.metric
    return {
        f"test {metric.name}": ("test", lambda one: _test(one, metric)),
        "against one worker": ("against", lambda one: _verdict(one, metric)),
        f"validation {metric.name}": ("validation", lambda one: write_value(metric, one.validation)),
        f"training {metric.name}": ("train", lambda one: write_value(metric, one.train, one.train_spread)),
        "workers": ("workers", lambda one: count(one.workers)),
        "updates": ("updates", lambda one: counts(one.updates, one.updates_range)),
        "global batch": ("global_batch", lambda one: count(one.global_batch)),
        f"{section.unit}/s": (
            "images_per_second", lambda one: _of_machine(one, one.images_per_second, "{:,.0f}".format)
        ),
        "MFU": ("model_flops_utilisation", lambda one: _of_machine(one, one.model_flops_utilisation, percent)),
        "time": ("seconds", lambda one: _of_machine(one, one.seconds, duration)),
        "epochs": ("epochs", lambda one: counts(one.epochs, one.epochs_range)),
        "seeds": ("num_seeds", lambda one: count(one.num_seeds)),
    }  # fmt: skip


def further_figures(section: Section) -> list[Table]:
    """Return a table of what the main table does not show: metrics beside the primary one, and further test sets."""
    names = dict.fromkeys((of, name) for one in section.entries for of, found in one.others.items() for name in found)
    known = {one.name: one for line in section.lines for one in line.metrics}
    columns: dict[str, Callable[[Entry], Cell]] = {"": lambda one: one.name}
    for of, name in names:
        metric = known.get(name, LOSS if name == LOSS.name else MetricInfo(name=name))
        columns[f"{of} {name}"] = _other(of, name, metric)
    return [Table.of("Further metrics", section.entries, columns)] if names else []


def _other(of: str, name: str, metric: MetricInfo) -> Callable[[Entry], Cell]:
    def cell(entry: Entry) -> Cell:
        value = entry.others.get(of, {}).get(name)
        return value, write_value(metric, value)

    return cell


def main_table(section: Section) -> str:
    """Return the table of techniques or of runs; columns without any value are left out."""
    if not section.entries:
        return ""
    columns: _Columns = {"technique" if section.is_study else "run": ("name", _name)}
    for title, (field, write) in _columns(section).items():
        is_known = any(
            getattr(one, field) is not None or (field == "against" and one.verdict) for one in section.entries
        )
        is_told_below = field in ("epochs", "num_seeds") and _same(section, field)
        if is_known and not is_told_below:
            columns[title] = field, write
    heads = "".join(_head(title, "" if field == "name" else "number") for title, (field, _) in columns.items())
    body = "".join(
        f'<tr class="{one.role}">'
        + "".join(_cell(getattr(one, field), write(one)) for field, write in columns.values())
        + "</tr>"
        for one in section.entries
    )
    return _box(heads, body, "results") + _remarks(section)


def plain_table(table: Table) -> str:
    """Return the HTML of a plain table with its title and note."""
    if not table.rows:
        return ""
    body = ""
    for row in table.rows:
        cells = [(cell, cell) if isinstance(cell, str) else cell for cell in row]
        body += "<tr>" + "".join(_cell(value, to_html(shown), "text") for value, shown in cells) + "</tr>"
    heads = "".join(_head(title, "" if title in table.left else "number") for title in table.heads)
    note = f'<p class="remark">{to_html(table.note)}</p>' if table.note else ""
    return f'<h3 class="above">{to_html(table.title)}</h3>{_box(heads, body, table.title)}{note}'


def _same(section: Section, field: str) -> bool:
    return len({getattr(entry, field) for entry in section.entries}) == 1


def _remarks(section: Section) -> str:
    remarks = []
    each = " each" * (len(section.entries) > 1)
    if _same(section, "epochs") and (epochs := section.entries[0].epochs):
        remarks.append(f"{things(epochs, 'epoch')}{each}.")
    if _same(section, "num_seeds") and (section.is_study or section.entries[0].num_seeds > 1):
        seeds = section.entries[0].num_seeds
        remarks.append("One seed." if seeds == 1 else f"{things(seeds, 'seed')}{each}.")
    if any(entry.test_spread for entry in section.entries):
        remarks.append("± is the standard deviation over seeds.")
    if section.tolerance is not None and any(entry.against is not None for entry in section.entries):
        meant = describe_verdicts(section.metric, section.tolerance)
        remarks.append(f"Below a difference is its 90 % interval; {to_html(meant)}.")
    figures = "Accuracies" if section.metric == ACCURACY else "Metrics"
    if any(entry.rehearsed for entry in section.entries):
        remarks.append(
            f"<b>Rehearsed</b>: one process computed all workers in turn. {figures} are those of as many real workers; "
            f"{section.unit}/s and time are those of this one process, not of as many machines."
        )
    if any(entry.model_flops_utilisation is not None for entry in section.entries):
        remarks.append("<b>MFU</b>, model flops utilisation: share of the peak of the GPUs that the model uses.")
    return f'<p class="remark">{" ".join(remarks)}</p>' if remarks else ""


def _head(title: str, kind: str = "number") -> str:
    return f'<th scope="col" class="{kind}"><button type="button">{to_html(title)}</button></th>'


def _cell(value: float | str | None, shown: str, text: str = "") -> str:
    name = text if isinstance(value, str) else "number"
    kind = f' class="{name}"' if name else ""
    return f'<td{kind} data-value="{"" if value is None else to_html(value)}">{shown}</td>'


def _box(heads: str, body: str, label: str) -> str:
    return (
        f'<div class="box" tabindex="0" role="region" aria-label="table: {to_html(label)}"><table class="sortable">'
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )
