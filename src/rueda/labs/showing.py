"""How what a lab draws becomes HTML: in marimo, live, and in a static page. Both use the report's figures and scripts.

A lab draws the report's own figures (:class:`~rueda.report.plot.Plot`), tables (:class:`~rueda.report.model.Table`),
:class:`Text` and :class:`Code`. The page's script receives them as a list of parts and draws what has changed.

In marimo a figure lives in a frame of its own (the *stage*), which is made once and stays; a cell that computes the
figure anew outputs a hidden frame that hands the new parts to the stage. So a figure moves without being rebuilt, and a
3-D surface keeps the angle to which the reader has turned it. Plotly is in the page once: :func:`begin` puts it there.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Protocol

from rueda.report.escape import Label, to_html, to_script
from rueda.report.figure_rows import figure_row
from rueda.report.inlined import asset, packed_plotly
from rueda.report.model import Table
from rueda.report.pack import pack
from rueda.report.plot import Plot
from rueda.report.table import plain_table

_REPORT_SCRIPTS = ("base.js", "plots.js", "drawing.js", "controls.js")


@dataclass(frozen=True)
class Text:
    """A paragraph below or above a figure; ``**bold**`` and `` `code` `` are the only marks."""

    text: str


@dataclass(frozen=True)
class Code:
    """Lines of a program or of its output, shown as they are."""

    source: str
    title: str = ""


Drawn = Plot | Table | Text | Code
"""one thing that a lab shows"""


class Block(Protocol):
    """What a cell of a notebook shows: live in marimo, and in a static page."""

    def _mime_(self) -> tuple[str, str]: ...

    def static(self) -> str:
        """Return the HTML of the block in a static page."""
        ...


@dataclass(frozen=True)
class Source:
    """Where the numbers of a figure come from: the line below it."""

    live: str
    static: str


HERE = Source(
    live="Computed here, now, by the library.",
    static="Computed by the library when this page was made; open the lab to compute it on your machine.",
)


def stored(path: str, provenance: Mapping[str, Any] | None = None) -> Source:
    """Return the source of a figure that shows a stored run.

    >>> stored("docs/results/x", {"commit": "45dc5ef0a1b2c3d4", "date": "2026-11-01"}).live
    'From a stored run of this project: docs/results/x, commit 45dc5ef0a1b2.'
    """
    commit = str((provenance or {}).get("commit") or "")
    text = f"From a stored run of this project: {path}{f', commit {commit[:12]}' if commit else ''}."
    return Source(live=text, static=text)


def inline(text: str) -> str:
    """Turn a short text into HTML; it may mark code and bold type as Markdown does.

    >>> inline("a < b, `w x` and **all**")
    'a &lt; b, <code>w x</code> and <b>all</b>'
    """
    found = to_html(text)
    found = re.sub(r"`([^`]+)`", r"<code>\1</code>", found)
    return re.sub(r"\*\*([^*]+)\*\*", r"<b>\1</b>", found)


def parts_of(drawn: Drawn | Iterable[Drawn], key: str) -> list[dict[str, Any]]:
    """Return what is drawn as the list that the page's script understands."""
    listed = [drawn] if isinstance(drawn, (Plot, Table, Text, Code)) else list(drawn)
    return [_part(one, key) for one in listed]


def _part(drawn: Drawn, key: str) -> dict[str, Any]:
    # A label is HTML of our own, in which texts are escaped already: it is not escaped again.
    if isinstance(drawn, Plot):
        shown = Label(figure_row(key, [drawn], set()))
        return {"plot": drawn.name, "half": drawn.half, "html": shown, "data": drawn.to_data()}
    if isinstance(drawn, Table):
        return {"html": Label(plain_table(drawn))}
    if isinstance(drawn, Code):
        title = f"<h3>{to_html(drawn.title)}</h3>" if drawn.title else ""
        return {"html": Label(f'{title}<pre tabindex="0">{html.escape(drawn.source)}</pre>')}
    return {"html": Label(f"<p>{inline(drawn.text)}</p>")}


def style() -> str:
    """Return the style sheet of the report and the labs."""
    return asset("page.css") + lab_asset("lab.css")


def scripts(*own: str) -> str:
    """Return the report's scripts and some of the labs'."""
    return "\n".join([*map(asset, _REPORT_SCRIPTS), *map(lab_asset, own)])


def lab_asset(name: str) -> str:
    """Return one of the labs' scripts or style sheets."""
    return (files("rueda.labs") / "assets" / name).read_text(encoding="utf-8")


def data_text(sections: Mapping[str, Any]) -> str:
    """Return parts by key as the text that the page's script reads."""
    return to_script(pack(sections))


EMPTY = to_script({"shared": [], "sections": {}})


def document(body: str, script: str) -> str:
    """Return a small page for a frame of a notebook."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
        f"<style>{style()}</style></head><body class='framed'>{body}"
        '<p id="trouble" hidden></p><i id="light" class="light" hidden></i>'
        f'<script type="application/json" id="data">{EMPTY}</script><script>{script}</script></body></html>'
    )


def frame(page: str, *, title: str = "", hidden: bool = False, height: int = 420) -> str:
    """Return an element that shows a page in a frame; the frame's script fits the height."""
    look = "display:none" if hidden else f"width:100%;height:{height}px;border:0;display:block"
    return f'<iframe title="{to_html(title)}" style="{look}" srcdoc="{html.escape(page)}"></iframe>'


def begin() -> Begin:
    """Return the first block of a notebook: it brings plotly, which all figures share."""
    return Begin()


@dataclass(frozen=True)
class Begin:
    """Plotly, in a hidden frame."""

    def _mime_(self) -> tuple[str, str]:
        page = (
            f'<!doctype html><script type="text/plain" id="plotly">{packed_plotly()[1]}</script>'
            f"<script>{lab_asset('begin.js')}</script>"
        )
        return "text/html", frame(page, hidden=True)

    def static(self) -> str:
        """Return nothing: a static page has plotly itself."""
        return ""


def stage(key: str, source: Source, height: int) -> str:
    """Return the frame in which the parts of a key are drawn."""
    body = f'<div class="stage" data-section="{key}"><div class="parts"></div>{source_line(source.live)}</div>'
    return frame(document(body, scripts("parts.js", "framed.js", "stage.js")), title=key, height=height)


def source_line(text: str) -> str:
    """Return the line that says where the numbers come from."""
    return f'<p class="source">{to_html(text)}</p>'


def handing_over(key: str, parts: Sequence[Mapping[str, Any]]) -> str:
    """Return a hidden frame that hands parts to the stage of their key."""
    text = data_text({key: list(parts)})
    page = f'<!doctype html><script type="application/json" id="data">{text}</script><script>{_hand(key)}</script>'
    return frame(page, hidden=True)


def _hand(key: str) -> str:
    return (
        "const text = document.getElementById('data').textContent;"
        f"(parent.ruedaShown ||= {{}})['{key}'] = text;"
        f"parent.dispatchEvent(new CustomEvent('rueda-shown', {{ detail: '{key}' }}));"
    )
