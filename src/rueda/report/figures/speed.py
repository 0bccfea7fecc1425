"""The throughput of each row; rehearsed rows are left out, since their throughput is that of one process."""

from __future__ import annotations

from rueda.report.figures.techniques import name_axis, narrow_names
from rueda.report.model import Entry, Section
from rueda.report.plot import Plot


def measured_speeds(section: Section) -> list[Entry]:
    """Return the rows whose throughput is that of real workers."""
    return [entry for entry in section.entries if entry.images_per_second is not None and not entry.rehearsed]


def speed(section: Section) -> Plot:
    """Draw a bar for each row, in the table's order."""
    rows = measured_speeds(section)[::-1]
    speeds = [entry.images_per_second or 0.0 for entry in rows]
    bars = {
        "type": "bar", "orientation": "h", "x": speeds, "y": list(range(len(rows))), "marker": {"color": "@blue"},
        "text": [f"{speed:,.0f}" for speed in speeds], "textposition": "outside", "cliponaxis": False,
        "textfont": {"color": "@ink", "size": 12}, "customdata": [row.name for row in rows],
        "hovertemplate": f"%{{customdata}}: %{{x:,.0f}} {section.unit}/s",
    }  # fmt: skip
    layout = {
        "xaxis": {"title": f"{section.unit} per second", "range": [0, 1.2 * max(speeds)], "nticks": 10},
        "yaxis": name_axis(rows), "bargap": 0.35, "showlegend": False,
    }  # fmt: skip
    left_out = " Rehearsed rows are left out." * any(entry.rehearsed for entry in section.entries)
    return Plot(
        name="speed", title=f"{section.unit.capitalize()} per second on this machine", traces=[bars], layout=layout,
        note=f"Measured during the trainings; other work on the machine may have slowed them.{left_out}",
        height=90 + 26 * len(rows),
        narrow={"xaxis.range": [0, 1.4 * max(speeds)], "xaxis.nticks": 4, **narrow_names(rows)},
    )  # fmt: skip
