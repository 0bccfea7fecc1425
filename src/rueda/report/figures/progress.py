"""Accuracy and loss during each run."""

from __future__ import annotations

import re
from typing import Any

from rueda.records.metric import LOSS
from rueda.report.escape import Label, lines
from rueda.report.figures.parts import SHARES, finite
from rueda.report.figures.styles import brief, first_of_rows, run_line, styles
from rueda.report.figures.time_axis import AXES, is_long, time_switch
from rueda.report.model import Line, Section
from rueda.report.plot import Changes, Fit, Plot, Span, Switch, View
from rueda.terminal.numbers import count

_SETS = {"test": "test", "train": "training", "validation": "validation"}
_MOST_MARKERS = 40
_MOST_NAMED = 5


def measures(section: Section) -> dict[str, tuple[str, bool]]:
    """Return what at least one run has measured: by column, its label and whether it is a fraction.

    The primary metric and the loss come first, on test, training and validation data, then further metrics and sets.
    """
    known = {one.name: one for line in section.lines for one in (*line.metrics, section.metric, LOSS)}
    there = dict.fromkeys(name for line in section.lines for name in line.progress)
    first = [f"{of}_{name}" for of in _SETS for name in dict.fromkeys((section.metric.name, LOSS.name))]
    found = {}
    for column in [*first, *there]:
        of, _, name = column.rpartition("_")
        if column in there and of and name in known:
            found[column] = f"{_SETS.get(of, of)} {name}", known[name].percent
    return found


def progress(section: Section) -> Plot:
    """Draw a line for each run; the rows of the headline have their names at the ends of their lines."""
    there = measures(section)
    switches = [
        time_switch(section, section.lines, "progress"),
        Switch(
            name="measure",
            label="show",
            views={_key(name): _view(section, name, *about) for name, about in there.items()},
        ),
    ]
    first = _key(next(iter(there))).replace("_", "-")
    unnamed: dict[str, Any] = {"annotations": [], "margin.r": 16}
    note = "One line for each run; click a name to hide or show its lines, hover for the recipe."
    notes = [note, _rehearsed(section), _long(section)]
    return Plot(
        name="progress", title=_title(section), note=" ".join(filter(None, notes)),
        traces=[run_line(section, line) for line in section.lines],
        layout={"margin": {"l": 56, "r": 16, "t": 12, "b": 48}}, height=440, narrow_height=320, switches=switches,
        paper=unnamed, narrow={**unnamed, "xaxis.dtick": None},
        images={f"{first}-{axis}": {"axis": axis} for axis in AXES},
    )  # fmt: skip


def _key(column: str) -> str:
    """Return the name of a view, of letters, digits, hyphens and underscores only.

    >>> _key("test_accuracy"), _key("night & day_top-5")
    ('test_accuracy', 'night-day_top-5')
    """
    return re.sub(r"[^\w-]+", "-", column, flags=re.ASCII)


def _view(section: Section, measure: str, label: str, is_share: bool) -> View:
    shown = [line for line in section.lines if measure in line.progress]
    firsts = first_of_rows(shown)
    traces: list[Changes] = []
    for line in section.lines:
        values = line.progress.get(measure)
        if values is None:
            traces.append({"visible": False})
            continue
        known = finite(values)
        traces.append(
            {
                "y": values, "mode": "lines+markers" if len(known) <= _MOST_MARKERS else "lines",
                "showlegend": firsts[line.entry] is line, "spans.y": Span(low=min(known), high=max(known)),
            }
        )  # fmt: skip
    names = _end_labels(section, shown, measure)
    fit = Fit(pad=0.06, least=0.0 if is_share else None, most=1.005 if is_share else None)
    value = f"{lines(label)} %{{y:{'.1%' if is_share else '.4g'}}}"
    return View(
        label=label, traces=traces,
        all_traces={"hovertemplate": Label(f"%{{meta[0]}}<br><b>{value}</b> at %{{x:,.4~f}} %{{meta[1]}}")},
        changes={
            "yaxis": {"title": label, "fit": fit, "tickformat": SHARES if is_share else None},
            "annotations": names,
            "margin.r": 30 + 7.6 * max(len(name["text"]) for name in names) if names else 16,
        },
    )  # fmt: skip


def _end_labels(section: Section, shown: list[Line], measure: str) -> list[dict[str, Any]]:
    labels = []
    for row, (entry, (colour, _)) in enumerate(zip(section.entries, styles(section), strict=True)):
        if entry.role == "other" and len(section.entries) > _MOST_NAMED:
            continue
        ends = [finite(line.progress[measure])[-1] for line in shown if line.entry == row]
        if ends:
            labels.append(
                {
                    "row": row, "x": 1, "xref": "paper", "xanchor": "left", "xshift": 8, "y": sum(ends) / len(ends),
                    "yref": "y", "showarrow": False, "align": "left", "text": brief(entry.name, 30),
                    "font": {"color": f"@{colour}-text", "size": 13},
                }
            )  # fmt: skip
    return labels


def _title(section: Section) -> str:
    name = section.metric.name
    return "Loss during training" if name == LOSS.name else f"{name[0].upper()}{name[1:]} and loss during training"


def _long(section: Section) -> str:
    names = {line.name: line.progress["epochs"][-1] for line in section.lines if is_long(section, line)}
    told = ", ".join(f"{name} (to epoch {count(end)})" for name, end in names.items())
    return f"Continues beyond the right edge: {told}; hide the other lines to see all of it." if names else ""


def _rehearsed(section: Section) -> str:
    names = {line.name for line in section.lines if line.rehearsed}
    others = sorted({line.name for line in section.lines} - names)
    if not names:
        return ""
    if len(others) < len(names):
        return f"All but {', '.join(others)} are rehearsed." if others else "All lines are rehearsed."
    return f"Rehearsed: {', '.join(sorted(names))}."
