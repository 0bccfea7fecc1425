"""The tables, as plain HTML: they are there without any script, and one click on a heading sorts them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rueda.report.escape import to_html
from rueda.report.model import Entry, Section, Table
from rueda.terminal.numbers import count, duration, percent, points, things

REHEARSED = '<span class="tag" title="the workers were virtual: one process was all of them in turn">rehearsed</span>'
_VERDICTS = {"kept": "✓ kept", "lost": "✗ lost", "diverged": "∞ diverged"}


@dataclass(frozen=True)
class Column:
    """A heading, the field that it sorts by, and what stands in the cell (HTML), if not the number alone."""

    title: str
    field: str
    cell: Callable[[Entry], str] | None = None

    def to_html(self, entry: Entry) -> str:
        """Write the cell of a row."""
        value = getattr(entry, self.field)
        return _cell(value, count(value) if self.cell is None else self.cell(entry))


def _name(entry: Entry) -> str:
    tag = f" {REHEARSED}" if entry.rehearsed else ""
    summary = f"<small>{to_html(entry.summary)}</small>" if entry.summary else ""
    return f"<b>{to_html(entry.name)}</b>{tag}{summary}"


def _remarked(shown: str, remark: str, is_remarked: bool) -> str:
    """Write a value; a rehearsal's speed is that of one process, say, and says so."""
    return to_html(shown) + f"<small>{remark}</small>" * is_remarked


def _speed(entry: Entry) -> str:
    speed = entry.images_per_second
    return _remarked(count(speed and round(speed)), "one process", entry.rehearsed and speed is not None)


def _time(entry: Entry) -> str:
    return _remarked(duration(entry.seconds), "one process", entry.rehearsed and entry.seconds is not None)


def _test(entry: Entry) -> str:
    shown = percent(entry.test_accuracy, entry.test_accuracy_spread)
    return _remarked(shown, "the other seeds", entry.diverged and entry.test_accuracy is not None)


def _verdict(entry: Entry) -> str:
    if entry.verdict is None:
        return "baseline" if entry.role == "base" else "–"
    some = 0 < entry.num_diverged < entry.num_seeds
    which = f"<small>{entry.num_diverged} of {entry.num_seeds} seeds</small>" if some else ""
    return f'<span class="verdict {entry.verdict}">{_VERDICTS[entry.verdict]}</span>{which}'


_COLUMNS = (
    Column("test accuracy", "test_accuracy", _test),
    Column("against one worker", "against", lambda entry: points(entry.against)),
    Column("verdict", "verdict", _verdict),
    Column("training accuracy", "train_accuracy", lambda one: percent(one.train_accuracy, one.train_accuracy_spread)),
    Column("workers", "workers"),
    Column("updates", "updates"),
    Column("global batch", "global_batch"),
    Column("images/s", "images_per_second", _speed),
    Column("time", "seconds", _time),
    Column("epochs", "epochs"),
    Column("seeds", "num_seeds"),
)


def main_table(section: Section) -> str:
    """Write the table of techniques, or of runs; columns without any value are left out."""
    if not section.entries:
        return ""
    name = Column("technique" if section.is_study else "run", "name", _name)
    columns = [
        column
        for column in _COLUMNS
        if any(getattr(entry, column.field) is not None for entry in section.entries)
        and not (column.title in ("epochs", "seeds") and _same(section, column.field))  # told below the table, once
    ]
    heads = _head(name.title, "") + "".join(_head(column.title) for column in columns)
    body = "".join(
        f'<tr class="{entry.role}">' + "".join(column.to_html(entry) for column in (name, *columns)) + "</tr>"
        for entry in section.entries
    )
    return _box(heads, body, "what each row reached") + _remarks(section)


def plain_table(table: Table) -> str:
    """Write a table that a reader of another kind of file made."""
    if not table.rows:
        return ""
    body = ""
    for row in table.rows:
        cells = [(cell, cell) if isinstance(cell, str) else cell for cell in row]
        body += "<tr>" + "".join(_cell(value, to_html(shown), "text") for value, shown in cells) + "</tr>"
    kinds = ["" if isinstance(cell, str) else "number" for cell in table.rows[0]]
    heads = "".join(_head(title, kind) for title, kind in zip(table.heads, kinds, strict=True))
    note = f'<p class="remark">{to_html(table.note)}</p>' if table.note else ""
    return f'<h3 class="above">{to_html(table.title)}</h3>{_box(heads, body, table.title)}{note}'


def _same(section: Section, field: str) -> bool:
    return len({getattr(entry, field) for entry in section.entries}) == 1


def _remarks(section: Section) -> str:
    remarks = []
    each = " each" * (len(section.entries) > 1)
    if _same(section, "epochs") and (epochs := section.entries[0].epochs):
        remarks.append(f"{things(epochs, 'epoch')}{each}.")
    if section.is_study and _same(section, "num_seeds"):
        seeds = section.entries[0].num_seeds
        remarks.append("One seed." if seeds == 1 else f"{things(seeds, 'seed')}{each}.")
    if any(entry.test_accuracy_spread for entry in section.entries):
        remarks.append("± is the spread over seeds.")
    if any(entry.rehearsed for entry in section.entries):
        remarks.append(
            "<b>Rehearsed</b>: one process was all the workers in turn. Accuracies are those of as many real workers; "
            "images/s and time are those of this one process, and say nothing about as many machines."
        )
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
