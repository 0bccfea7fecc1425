"""A figure as data: its traces and layout, its switches, and what differs on a phone and on paper."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Changes = dict[str, Any]
"""new values by dotted paths such as ``scene.zaxis.range``"""


@dataclass(frozen=True, kw_only=True)
class View:
    """One option of a switch, with the changes that it makes to traces and layout."""

    label: str
    traces: list[Changes] = field(default_factory=list)
    """the changes of each trace"""
    all_traces: Changes = field(default_factory=dict)
    """changes that all traces share"""
    changes: Changes = field(default_factory=dict)
    """changes of the layout"""


@dataclass(frozen=True, kw_only=True)
class Switch:
    """A row of buttons; figures of a section whose switches have the same name change together."""

    name: str
    """an identifier of lower-case letters and hyphens"""
    label: str
    """the text before the buttons"""
    views: dict[str, View]
    """the options by name; the first is shown initially"""


@dataclass(frozen=True, kw_only=True)
class Span:
    """The range that a trace needs on an axis that is fitted to the visible rows (see :class:`Fit`)."""

    low: float
    high: float
    small: float | None = None
    large: float | None = None
    """sizes that decide whether the axis is logarithmic; None: this trace does not count"""
    starts: tuple[float, ...] = ()
    """where a logarithmic axis may begin"""
    is_outlier: bool = False
    """the axis need not contain this trace, unless only outliers are shown"""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How an axis is fitted to the visible rows, since a reader may hide some.

    A linear axis reaches from the lowest ``low`` to the highest ``high`` of the traces' spans, and ``pad`` of that
    distance beyond, but stays between ``least`` and ``most``. The axis is logarithmic if the largest ``large`` is at
    least ``ratio`` times the ``small`` at ``rank`` (0: the smallest, 0.25: the lower quartile). It then begins at the
    lowest of the traces' ``starts``, divided by the first of ``log_pads``, and ends at the highest ``high`` times the
    second. If each trace has several starts, the lowest first start, the lowest second start and so on are
    determined, and the axis begins at the highest of these.
    """

    pad: float
    least: float | None = None
    most: float | None = None
    ratio: float | None = None
    rank: float = 0.0
    log_pads: tuple[float, float] = (1.0, 1.0)
    log: dict[str, Any] = field(default_factory=dict)
    """further settings of a logarithmic axis, such as its ticks"""


def log_start(spans: Iterable[Span]) -> float | None:
    """Return where a logarithmic axis of all these traces begins, without padding; None if nothing is positive."""
    starts = [span.starts for span in spans if span.starts]
    return max(map(min, zip(*starts, strict=True)), default=None)


@dataclass(kw_only=True)
class Plot:
    """A figure as plotly's own traces and layout; the page adds fonts, margins and colours.

    ``@blue`` as a colour stands for the page's blue, light or dark: ink, muted, grid, edge, card, blue, red, orange,
    green, purple, sky. Letters take ``@blue-text``, which is dark enough to be read. An axis may be given as its title
    alone, or with a :class:`Fit` under ``fit``. Without ``showlegend`` a figure has a legend only on paper. A text is
    shown literally; a :class:`~rueda.report.escape.Label` may have plotly's tags.

    A trace or an annotation with a ``row`` belongs to that row of the section's table and is hidden with it; the
    annotations are moved apart where they overlap. Under ``spans`` a trace has a :class:`Span` of each fitted axis.

    >>> Plot(name="fit", title="The fit", traces=[{"x": [1, 2], "y": [3, 4], "line": {"color": "@blue"}}],
    ...     layout={"xaxis": "batch", "yaxis": {"title": "seconds", "type": "log"}}).height
    380
    """

    name: str
    """an identifier of lower-case letters and hyphens, unique in its section"""
    title: str
    traces: list[dict[str, Any]]
    layout: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    height: int = 380
    half: bool = False
    """whether it is placed beside its neighbour on a wide screen"""
    switches: list[Switch] = field(default_factory=list)
    narrow: Changes = field(default_factory=dict)
    """changes of the layout on a phone"""
    narrow_height: int | None = None
    paper: Changes = field(default_factory=dict)
    """changes of the layout in print and in PNG files"""
    images: dict[str, dict[str, str]] = field(default_factory=dict)
    """the chosen views of each PNG file, by file name; by default one file with the figure's name"""

    @property
    def has_rows(self) -> bool:
        """Whether its traces belong to rows of the table, which the reader can hide."""
        return any("row" in trace for trace in self.traces)

    def to_data(self) -> dict[str, Any]:
        """Return the data that the page's script needs to draw the figure."""
        names = ("traces", "layout", "narrow", "paper", "height")
        return {
            **{name: getattr(self, name) for name in names},
            "switches": {switch.name: switch.views for switch in self.switches},
            "narrow_height": self.narrow_height or self.height,
            "images": self.images or {self.name: {}},
        }


def own_switch(name: str, views: list[View]) -> list[Switch]:
    """Return a switch of one figure alone; with a single view the page shows no button."""
    return [Switch(name=name, label="show", views={str(index): view for index, view in enumerate(views)})]
