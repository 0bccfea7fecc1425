"""Write one HTML page: sentences, tables, figures, provenance. It makes no request, and no text in it can be executed.

The Content-Security-Policy names the two scripts by their hashes (ours and plotly's); a browser runs no other, even if
a text has slipped through the escaping, and loads nothing from anywhere. Plotly is compressed inside the page and
unpacked by the browser, which makes the page 2.5 times smaller.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rueda.files.atomic import write_atomically
from rueda.records.metric import MetricInfo
from rueda.records.study import control_of
from rueda.report.collect import collect
from rueda.report.escape import to_html, to_script
from rueda.report.figure_rows import figure_row
from rueda.report.figures.arrangement import training_figures
from rueda.report.figures.styles import styles
from rueda.report.head import page_head
from rueda.report.inlined import asset, packed_plotly
from rueda.report.model import Entry, Section
from rueda.report.pack import pack
from rueda.report.plot import Plot
from rueda.report.provenance import provenance
from rueda.report.table import main_table, plain_table
from rueda.report.words import sentences
from rueda.terminal.metrics import write_change, write_value
from rueda.terminal.numbers import digits, things

_SCRIPTS = ("base.js", "plots.js", "drawing.js", "controls.js", "page.js")


def write_report(paths: Path | str | Iterable[Path | str], output: Path | str = "report.html") -> Path:
    """Write one self-contained HTML page about runs and studies, from their files alone.

    Args:
        paths: one or several run folders, study folders, folders that hold such folders, or JSON files.
        output: the file of the page.

    Returns:
        The page's path.

    Raises:
        RunError: a path holds no run or record, a file is damaged, or the page cannot be written.
    """
    chosen = [paths] if isinstance(paths, (str, Path)) else paths
    output = Path(output)
    write_atomically(output, render(collect(Path(path) for path in chosen)).encode())
    return output


def render(sections: list[Section]) -> str:
    """Return the HTML of a page with these sections."""
    packed, script = packed_plotly()[1], "\n".join(asset(name) for name in _SCRIPTS)
    figures = [training_figures(section) for section in sections]
    data = to_script(pack({f"s{at}": _data(section, figures[at]) for at, section in enumerate(sections)}))
    alone = len(sections) == 1
    title = sections[0].title + ("" if alone else f" and {len(sections) - 1} more")
    brand = "Rueda <span>report</span>"
    header = f'<p class="brand">{brand}</p>' if alone else f'<h1 class="brand">{brand}</h1>{_contents(sections)}'
    body = "".join(_section(section, figures[at], f"s{at}", alone=alone) for at, section in enumerate(sections))
    return f"""{page_head(title, script=script, style=asset("page.css"))}<body>
<header>{header}</header>
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


def _contents(sections: list[Section]) -> str:
    links = "".join(f'<li><a href="#s{at}">{to_html(section.title)}</a></li>' for at, section in enumerate(sections))
    return f'<nav aria-label="contents"><ul>{links}</ul></nav>'


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
        parts.append(figure_row(key, row, shown))
    parts += [plain_table(table) for table in section.tables]
    parts += [figure_row(key, [plot], shown) for plot in section.plots if not plot.half]
    parts.append(figure_row(key, [plot for plot in section.plots if plot.half], shown))
    parts.append(provenance(section))
    return f'<section id="{key}" data-section="{key}">\n' + "\n".join(part for part in parts if part) + "\n</section>\n"


def _lead(section: Section) -> str:
    """Return the main sentence in large type, and the other sentences below it."""
    first, *others = sentences(section)
    more = f'<p class="also">{to_html(" ".join(others))}</p>' if others else ""
    return f'<p class="lead">{to_html(first)}</p>{more}'


def _tiles(section: Section) -> str:
    """Return the tiles of the headline: one worker, naive scaling, the best row, and its control."""
    base, naive, best, control = (section.with_role(role) for role in ("base", "naive", "best", "control"))
    if not section.is_study or base is None or base.test is None or (naive is None and best is None):
        return ""
    shown = [entry for entry in (base, naive, best, control) if entry is not None]
    tiles = "".join(_tile(entry, section.metric) for entry in shown if entry.test is not None or entry.diverged)
    wanted = None if best is None else control_of(best.name)
    if wanted is not None and not any(entry.name == wanted for entry in section.entries):
        tiles += (
            f'<div class="tile control"><span>control: {to_html(wanted)}</span>'
            "<strong>missing</strong><span>no row of this study trains it</span></div>"
        )
    return f'<div class="tiles">{tiles}</div>'


def _tile(entry: Entry, metric: MetricInfo) -> str:
    who = "control, " * (entry.role == "control") + things(entry.workers, "worker") + ", rehearsed" * entry.rehearsed
    seeds = "one seed" if entry.num_seeds == 1 else f"mean of {entry.num_seeds} seeds"
    spread = "" if entry.test_spread is None else f" ± {_spread(metric, entry.test_spread)}"
    value, told = write_value(metric, entry.test), f"test {metric.name}{spread}, {seeds}"
    if entry.diverged:
        value, told = "diverged", f"{entry.num_diverged} of {things(entry.num_seeds, 'seed')}"
    elif entry.against is not None and entry.role != "base":
        told += f"; {write_change(metric, entry.against)}{' points' * metric.percent}"
    return (
        f'<div class="tile {entry.role}"><span>{who}: {to_html(entry.name)}</span>'
        f"<strong>{value}</strong><span>{told}</span></div>"
    )


def _spread(metric: MetricInfo, spread: float) -> str:
    return f"{100 * spread:.1f}" if metric.percent else digits(spread, 2)


def _chips(section: Section) -> str:
    """Return a button for each row that has runs, which hides and shows their lines."""
    chips = "".join(
        f'<button type="button" class="chip" aria-pressed="true" data-row="{index}">'
        f'<i class="{colour} {dash}"></i>{to_html(entry.name)}</button>'
        for index, (entry, (colour, dash)) in enumerate(zip(section.entries, styles(section), strict=True))
        if any(line.entry == index for line in section.lines)
    )
    return f'<div class="chips">{chips}</div>' if chips else ""
