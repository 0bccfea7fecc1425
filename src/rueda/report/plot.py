"""A figure as data: what is drawn, what a reader may switch, and what changes on a phone and on paper."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Changes = dict[str, Any]
"""new values by their paths with dots, such as ``scene.zaxis.range``"""


@dataclass(frozen=True, kw_only=True)
class View:
    """One choice of a switch: what it changes in the traces and in the layout."""

    label: str
    traces: list[Changes] = field(default_factory=list)
    """for each trace"""
    all_traces: Changes = field(default_factory=dict)
    """the same for all of them"""
    changes: Changes = field(default_factory=dict)
    """of the layout"""


@dataclass(frozen=True, kw_only=True)
class Switch:
    """A row of buttons; figures of a section that have a switch of one name change together."""

    name: str
    """small letters and hyphens"""
    label: str
    """stands before the buttons"""
    views: dict[str, View]
    """the choices by name; the first is shown"""


@dataclass(frozen=True, kw_only=True)
class Span:
    """What a trace needs of an axis that fits the rows that are shown (see :class:`Fit`)."""

    low: float
    high: float
    small: float | None = None
    large: float | None = None
    """sizes that decide whether the axis is logarithmic; None: this trace has no say"""
    starts: tuple[float, ...] = ()
    """where a logarithmic axis may begin"""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How an axis follows the rows that are shown, since a reader may hide some.

    A linear axis reaches from the lowest ``low`` to the highest ``high`` of the traces' spans, and ``pad`` of that
    distance beyond, but stays between ``least`` and ``most``. The axis is logarithmic if the largest ``large`` is at
    least ``ratio`` times the ``small`` at ``rank`` (0: the smallest, 0.25: the lower quartile). It then begins at the
    lowest start (with several starts a trace: at the highest of the lowest) divided by the first of ``log_pads``, and
    ends at the highest ``high`` times the second.
    """

    pad: float
    least: float | None = None
    most: float | None = None
    ratio: float | None = None
    rank: float = 0.0
    log_pads: tuple[float, float] = (1.0, 1.0)
    log: dict[str, Any] = field(default_factory=dict)
    """what a logarithmic axis has besides, such as its ticks"""


def log_start(spans: Iterable[Span]) -> float | None:
    """Give where a logarithmic axis of all these traces begins, before its pad; None if nothing is positive."""
    starts = [span.starts for span in spans if span.starts]
    return max(map(min, zip(*starts, strict=True)), default=None)


@dataclass(kw_only=True)
class Plot:
    """A figure as plotly's own traces and layout; the page gives it its font, its margins and its colours.

    ``@blue`` as a colour stands for the page's blue, light or dark: ink, muted, grid, edge, card, blue, red, orange,
    green, purple, sky. An axis may be given as its title alone, or with a :class:`Fit` under ``fit``. Without
    ``showlegend`` a figure has a legend on paper alone. A text is shown as it stands; a
    :class:`~rueda.report.escape.Label` may have plotly's tags.

    A trace or an annotation with a ``row`` belongs to that row of the section's table and is hidden with it; the
    annotations keep apart from each other. A trace has its :class:`Span` of each fitted axis under ``spans``.

    >>> Plot(name="fit", title="The fit", traces=[{"x": [1, 2], "y": [3, 4], "line": {"color": "@blue"}}],
    ...     layout={"xaxis": "batch", "yaxis": {"title": "seconds", "type": "log"}}).height
    380
    """

    name: str
    """small letters and hyphens, one of its kind in a section"""
    title: str
    traces: list[dict[str, Any]]
    layout: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    height: int = 380
    half: bool = False
    """stands beside its neighbour on a wide screen"""
    switches: list[Switch] = field(default_factory=list)
    narrow: Changes = field(default_factory=dict)
    """of the layout on a phone"""
    narrow_height: int | None = None
    paper: Changes = field(default_factory=dict)
    """of the layout in print and in PNG files"""
    images: dict[str, dict[str, str]] = field(default_factory=dict)
    """the PNG files by name, and what is chosen for each; none: one file of the figure's name"""

    @property
    def has_rows(self) -> bool:
        """Say whether rows of the table can be hidden in it."""
        return any("row" in trace for trace in self.traces)

    def to_data(self) -> dict[str, Any]:
        """Give what the page's script needs to draw it."""
        names = ("traces", "layout", "narrow", "paper", "height")
        return {
            **{name: getattr(self, name) for name in names},
            "switches": {switch.name: switch.views for switch in self.switches},
            "narrow_height": self.narrow_height or self.height,
            "images": self.images or {self.name: {}},
        }


def own_switch(name: str, views: list[View]) -> list[Switch]:
    """Let the reader choose what one figure shows; where there is one view only, the page has no button."""
    return [Switch(name=name, label="show", views={str(index): view for index, view in enumerate(views)})]
