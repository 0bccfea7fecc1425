"""One page: the sentence, the table, the figures, where it was run. No request leaves it, and no text in it can run.

The Content-Security-Policy names the two scripts by their hashes (ours and plotly's); a browser runs no other, whatever
a file may have smuggled past the escapes, and loads nothing from anywhere. Plotly is compressed inside the page and
unpacked by the browser, which makes the page 2.5 times smaller.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path

from rueda.files.atomic import write_atomically
from rueda.report.collect import collect
from rueda.report.escape import to_html, to_script
from rueda.report.figures import TITLES, figure_data, figure_names, styles
from rueda.report.model import Plot, Section
from rueda.report.provenance import provenance
from rueda.report.table import main_table, plain_table
from rueda.report.words import sentences
from rueda.terminal.numbers import percent, points

_SCRIPTS = ("base.js", "training.js", "studies.js", "plots.js", "drawing.js", "page.js")
_NOTES = {
    "progress": "A line a run; click a name to hide or show it, hover for the recipe.",
    "batch": "Examples of all workers in an update.",
    "speed": "As the trainings ran, perhaps beside other work on the machine.",
    "steps": "The curve is updates = S + E / batch, with S the fewest updates and E the fewest examples. "
    "Perfect scaling: twice the batch halves the updates (slope 0.8 or more); maximal parallelism: it saves next to "
    "none (0.2 or less). Shaded red: the interval of the critical batch.",
    "surface": "Mean squared error over slope w and intercept b, on a logarithmic scale; a path for each batch size.",
}


def write_report(paths: Path | str | Iterable[Path | str], output: Path | str = "report.html") -> Path:
    """Write one self-contained HTML page about runs and studies, from their files alone.

    Args:
        paths: run folders, study folders, or folders that hold some; one or several.
        output: the page.

    Returns:
        The page's path.

    Raises:
        RunError: a path is no run or study, a file of it is damaged, or the page cannot be written.
    """
    chosen = [paths] if isinstance(paths, (str, Path)) else paths
    output = Path(output)
    write_atomically(output, render(collect(Path(path) for path in chosen)).encode())
    return output


def render(sections: list[Section]) -> str:
    """Write the page of some sections."""
    (plotly, packed), script = _plotly(), "\n".join(_asset(name) for name in _SCRIPTS)
    data = to_script({f"s{index}": figure_data(section) for index, section in enumerate(sections)})
    alone = len(sections) == 1
    title = sections[0].title + ("" if alone else f" and {len(sections) - 1} more")
    body = "".join(_section(section, f"s{index}", alone=alone) for index, section in enumerate(sections))
    policy = (
        f"default-src 'none'; script-src {plotly} {_hash(script)}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{to_html(title)}</title>
<style>
{_asset("page.css")}</style>
</head>
<body>
<header><p class="brand">Rueda <span>report</span></p>{"" if alone else f"<h1>{to_html(title)}</h1>"}</header>
<main>
{body}</main>
<p id="trouble" hidden></p><i id="light" class="light" hidden></i>
<script type="application/json" id="data">{data}</script>
<script type="text/plain" id="plotly">{packed}</script>
<script>{script}</script>
</body>
</html>
"""


def _section(section: Section, key: str, *, alone: bool) -> str:
    level = "h1" if alone else "h2"
    names = figure_names(section)
    parts = [f"<{level}>{to_html(section.title)}</{level}>", _lead(section)]
    parts += [_tiles(section), main_table(section)]
    if "techniques" in names:
        parts.append(_figure(key, "techniques"))
    training = [name for name in names if name in ("progress", "rate", "batch")]
    if training:
        parts.append(_training(section, key, training))
    parts.append(_figure(key, "speed") if "speed" in names else "")
    rest = [name for name in names if name in ("throughput", "steps")]
    parts.append(f'<div class="pair">{"".join(_figure(key, name) for name in rest)}</div>' if rest else "")
    if "surface" in names:
        parts.append(f'<div class="pair">{_figure(key, "surface")}{_figure(key, "contours")}</div>')
    parts += [plain_table(table) for table in section.tables]
    parts += _plots(section, key)
    parts.append(provenance(section))
    return f'<section data-section="{key}">\n' + "\n".join(part for part in parts if part) + "\n</section>\n"


def _plots(section: Section, key: str) -> list[str]:
    """Write the places of the plain figures, halves two by two."""
    whole = [_place(key, plot) for plot in section.plots if not plot.half]
    halves = "".join(_place(key, plot) for plot in section.plots if plot.half)
    return [*whole, f'<div class="pair">{halves}</div>' if halves else ""]


def _place(key: str, plot: Plot) -> str:
    options = {str(index): view.label for index, view in enumerate(plot.views)}
    switch = _switch("view", "show", options) if len(options) > 1 else ""
    return _frame(key, plot.name, plot.title, plot.note, switch)


def _lead(section: Section) -> str:
    """Say the main thing large, and what else was found below it."""
    first, *others = sentences(section)
    more = f'<p class="also">{to_html(" ".join(others))}</p>' if others else ""
    return f'<p class="lead">{to_html(first)}</p>{more}'


def _tiles(section: Section) -> str:
    """Show the three numbers that tell the story: one worker, many, and the best of many."""
    base, naive, best = (section.with_role(role) for role in ("base", "naive", "best"))
    if not section.is_study or base is None or base.test_accuracy is None or (naive is None and best is None):
        return ""
    tiles = []
    for entry in (base, naive, best):
        if entry is not None and (entry.test_accuracy is not None or entry.diverged):
            who = "1 worker" if entry.workers == 1 else f"{entry.workers or 'N'} workers"
            value = "diverged" if entry.diverged else percent(entry.test_accuracy)
            told = [] if entry.diverged else ["test accuracy"]
            told += [] if entry.against is None or entry is base else [f"{points(entry.against)} points"]
            told += ["rehearsed"] * entry.rehearsed + ["one seed"] * (entry.num_seeds == 1)
            tiles.append(
                f'<div class="tile {entry.role}"><span>{who}: {to_html(entry.name)}</span>'
                f"<strong>{value}</strong><span>{', '.join(told)}</span></div>"
            )
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _training(section: Section, key: str, names: list[str]) -> str:
    measures = {
        "test_accuracy": "test accuracy",
        "test_loss": "test loss",
        "train_accuracy": "training accuracy",
        "train_loss": "training loss",
    }
    there = [name for name in measures if any(name in line.progress for line in section.lines)]
    chips = "".join(
        f'<button type="button" class="chip" aria-pressed="true" data-row="{index}">'
        f'<i class="{colour} {dash}"></i>{to_html(entry.name)}</button>'
        for index, (entry, (colour, dash)) in enumerate(zip(section.entries, styles(section), strict=True))
        if any(line.entry == index for line in section.lines)
    )
    axes = {"epochs": "epochs", "updates": "updates", "seconds": "seconds"}
    switches = _switch("axis", "against", axes)
    switches += _switch("measure", "show", {name: measures[name] for name in there}) if len(there) > 1 else ""
    figures = _figure(key, "progress", switches, _rehearsed(section)) if "progress" in names else switches
    notes = {"rate": f"As used {_how_often(section)}, after scaling and warm-up."}
    schedules = "".join(_figure(key, name, more=notes.get(name, "")) for name in names if name != "progress")
    return f'<div class="training"><div class="chips">{chips}</div>{figures}<div class="pair">{schedules}</div></div>'


def _how_often(section: Section) -> str:
    """Say when the rate was noted; a run may have noted it only with what it measured after each epoch."""
    often = {len(line.schedule["updates"]) > len(line.progress["updates"]) for line in section.lines}
    if often == {True}:
        return "at each update"
    return "at the end of each epoch" if often == {False} else "at each update, or at the end of each epoch"


def _rehearsed(section: Section) -> str:
    names = {line.name for line in section.lines if line.rehearsed}
    others = sorted({line.name for line in section.lines} - names)
    if not names:
        return ""
    if len(others) < len(names):
        return f"All but {', '.join(others)} are rehearsed." if others else "All lines are rehearsed."
    return f"Rehearsed: {', '.join(sorted(names))}."


def _switch(kind: str, label: str, options: Mapping[str, str]) -> str:
    buttons = "".join(
        f'<button type="button" data-{kind}="{name}" aria-pressed="{"true" if index == 0 else "false"}">'
        f"{to_html(text)}</button>"
        for index, (name, text) in enumerate(options.items())
    )
    return f'<div class="switch" role="group" aria-label="{label}"><span>{label}</span>{buttons}</div>'


def _figure(key: str, name: str, switches: str = "", more: str = "") -> str:
    told = " ".join(text for text in (_NOTES.get(name), more) if text)
    return _frame(key, name, TITLES[name], told, switches)


def _frame(key: str, name: str, title: str, told: str, switches: str = "") -> str:
    note = f'<p class="remark">{to_html(told)}</p>' if told else ""
    return (
        f"<figure><figcaption><h3>{to_html(title)}</h3>{note}{switches}</figcaption>"
        f'<div class="plot" id="{key}-{to_html(name)}" data-figure="{to_html(name)}"></div></figure>'
    )


def _asset(name: str) -> str:
    return (files("rueda.report") / "assets" / name).read_text(encoding="utf-8")


@cache
def _plotly() -> tuple[str, str]:
    """Give plotly's hash, and plotly packed; the same in every page."""
    from plotly.offline import get_plotlyjs  # not at import: the command answers --help without it

    script = str(get_plotlyjs())
    return _hash(script), base64.b64encode(gzip.compress(script.encode(), 9, mtime=0)).decode()


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
