"""Images per second of each row; a rehearsal's are those of one process, and drawn so."""

from __future__ import annotations

from typing import Any

from rueda.report.escape import Label
from rueda.report.figures.parts import LEGEND_ABOVE
from rueda.report.figures.techniques import name_axis, narrow_names
from rueda.report.model import Section
from rueda.report.plot import Plot

_HATCHED = {
    "color": "@card", "line": {"color": "@muted", "width": 1},
    "pattern": {"shape": "/", "fgcolor": "@muted", "bgcolor": "@card", "size": 6, "solidity": 0.25},
}  # fmt: skip


def speed(section: Section) -> Plot:
    """Draw a bar a row, in the table's order."""
    rows = [entry for entry in reversed(section.entries) if entry.images_per_second is not None]
    speeds = [entry.images_per_second or 0.0 for entry in rows]
    traces: list[dict[str, Any]] = []
    for name, rehearsed in (("measured", False), ("rehearsed: one process is all the workers", True)):
        chosen = [at for at, row in enumerate(rows) if row.rehearsed is rehearsed]
        more = "<br>of one process, not of many machines" if rehearsed else ""
        if chosen:
            traces.append(
                {
                    "type": "bar", "orientation": "h", "name": name, "showlegend": True,
                    "x": [speeds[at] for at in chosen], "y": chosen,
                    "marker": _HATCHED if rehearsed else {"color": "@blue"},
                    "text": [f"{speeds[at]:,.0f}" for at in chosen], "textposition": "outside", "cliponaxis": False,
                    "textfont": {"color": "@ink", "size": 12}, "customdata": [rows[at].name for at in chosen],
                    "hovertemplate": Label("%{customdata}: %{x:,.0f} images/s" + more),
                }
            )  # fmt: skip
    layout = {
        "xaxis": {"title": "images per second", "range": [0, 1.2 * max(speeds)], "nticks": 10},
        "yaxis": name_axis(rows),
        "bargap": 0.35,
        "margin": {"l": 60, "r": 16, "t": 36, "b": 48},
        "showlegend": any(row.rehearsed for row in rows),
        "legend": LEGEND_ABOVE,
    }
    narrow = {"xaxis.range": [0, 1.4 * max(speeds)], "xaxis.nticks": 4, **narrow_names(rows)}
    return Plot(
        name="speed", title="Images per second on this machine", traces=traces, layout=layout,
        note="As the trainings ran, perhaps beside other work on the machine.", height=110 + 26 * len(rows),
        narrow=narrow,
    )  # fmt: skip
