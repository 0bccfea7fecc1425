"""One page: the sentence, the table, the figures, where it was run. No request leaves it, and no text in it can run.

The Content-Security-Policy names the two scripts by their hashes (ours and plotly's); a browser runs no other, whatever
a file may have smuggled past the escapes, and loads nothing from anywhere. Plotly is compressed inside the page and
unpacked by the browser, which makes the page 2.5 times smaller.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from rueda.files.atomic import write_atomically
from rueda.report.collect import collect
from rueda.report.escape import to_html, to_script
from rueda.report.figures.arrangement import training_figures
from rueda.report.figures.styles import styles
from rueda.report.model import Section
from rueda.report.pack import pack
from rueda.report.plot import Plot, Switch
from rueda.report.provenance import provenance
from rueda.report.table import main_table, plain_table
from rueda.report.words import sentences
from rueda.terminal.numbers import percent, points

_SCRIPTS = ("base.js", "plots.js", "drawing.js", "page.js")


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
    figures = [training_figures(section) for section in sections]
    data = to_script(pack({f"s{at}": _data(section, figures[at]) for at, section in enumerate(sections)}))
    alone = len(sections) == 1
    title = sections[0].title + ("" if alone else f" and {len(sections) - 1} more")
    body = "".join(_section(section, figures[at], f"s{at}", alone=alone) for at, section in enumerate(sections))
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


def _data(section: Section, figures: list[list[Plot]]) -> dict[str, Any]:
    plots = [*(plot for row in figures for plot in row), *section.plots]
    return {"plots": {plot.name: plot.to_data() for plot in plots}}


def _section(section: Section, figures: list[list[Plot]], key: str, *, alone: bool) -> str:
    level = "h1" if alone else "h2"
    parts = [f"<{level}>{to_html(section.title)}</{level}>", _lead(section)]
    parts += [_tiles(section), main_table(section)]
    shown: set[str] = set()
    chips = _chips(section)
    for row in figures:
        if chips and row[0].has_rows:  # above the first figure whose rows they hide
            parts.append(chips)
            chips = ""
        parts.append(_row(key, row, shown))
    parts += [plain_table(table) for table in section.tables]
    parts += [_row(key, [plot], shown) for plot in section.plots if not plot.half]
    parts.append(_row(key, [plot for plot in section.plots if plot.half], shown))
    parts.append(provenance(section))
    return f'<section data-section="{key}">\n' + "\n".join(part for part in parts if part) + "\n</section>\n"


def _row(key: str, plots: list[Plot], shown: set[str]) -> str:
    """Write the places of figures that stand beside one another; a switch stands above the first that has it."""
    figures = ""
    for plot in plots:
        switches = [switch for switch in plot.switches if switch.name not in shown and len(switch.views) > 1]
        shown |= {switch.name for switch in switches}
        note = f'<p class="remark">{to_html(plot.note)}</p>' if plot.note else ""
        figures += (
            f"<figure><figcaption><h3>{to_html(plot.title)}</h3>{note}{''.join(map(_switch, switches))}</figcaption>"
            f'<div class="plot" id="{key}-{to_html(plot.name)}" data-figure="{to_html(plot.name)}"></div></figure>'
        )
    return f'<div class="pair">{figures}</div>' if plots and plots[0].half else figures


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


def _chips(section: Section) -> str:
    """Write a button for each row that has runs: it hides and shows them."""
    chips = "".join(
        f'<button type="button" class="chip" aria-pressed="true" data-row="{index}">'
        f'<i class="{colour} {dash}"></i>{to_html(entry.name)}</button>'
        for index, (entry, (colour, dash)) in enumerate(zip(section.entries, styles(section), strict=True))
        if any(line.entry == index for line in section.lines)
    )
    return f'<div class="chips">{chips}</div>' if chips else ""


def _switch(switch: Switch) -> str:
    buttons = "".join(
        f'<button type="button" data-view="{name}" aria-pressed="{"true" if index == 0 else "false"}">'
        f"{to_html(view.label)}</button>"
        for index, (name, view) in enumerate(switch.views.items())
    )
    return (
        f'<div class="switch" role="group" aria-label="{switch.label}" data-switch="{to_html(switch.name)}">'
        f"<span>{switch.label}</span>{buttons}</div>"
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
