"""Why more GPUs: what machines can compute, and what trainings need. Each number says how sure it is.

``stated``: taken from course material or a paper that states it. ``approximate``: commonly quoted, rounded, not checked
against its source; the figures show orders of magnitude, so this is exact enough for a trend and for nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

from rueda.labs.showing import Drawn, Text
from rueda.plan.prediction import scaling_efficiency
from rueda.report.model import Cell, Table
from rueda.report.plot import Plot
from rueda.terminal.numbers import digits

STATED, APPROXIMATE = "stated", "approximate"


@dataclass(frozen=True)
class Training:
    """One published training."""

    year: int
    name: str
    parameters: float
    examples: float
    unit: str
    petaflops_days: float
    sureness: str


TRAININGS = (
    Training(2012, "AlexNet", 6e7, 1.2e6, "images", 0.006, APPROXIMATE),
    Training(2015, "ResNet-152", 6e7, 1.2e6, "images", 0.1, APPROXIMATE),
    Training(2018, "BERT large", 3.4e8, 3.3e9, "words", 3.0, APPROXIMATE),
    Training(2019, "GPT-2", 1.5e9, 1e10, "tokens", 20.0, APPROXIMATE),
    Training(2020, "GPT-3", 1.75e11, 3e11, "tokens", 3640.0, APPROXIMATE),
)
"""trainings of their years; one PF/s-day is 10¹⁵ operations a second for a day"""

MACHINES = {"16 GPUs of 2018": 2.0, "8 GPUs of 2022": 32.0}
"""petaflops a second of one machine with eight GPUs, stated in the course"""
NEEDED = 1000.0
"""PF/s-days of the course's example"""


def days(petaflops_days: float, petaflops: float, machines: int = 1, efficiency: float = 1.0) -> float:
    """Return the days of a training: the work, divided by what all machines really compute in a day.

    >>> round(days(1000, 32), 1), round(days(1000, 32, machines=8, efficiency=0.9), 1)
    (31.2, 4.3)
    """
    return petaflops_days / (petaflops * machines * efficiency)


def trend() -> Plot:
    """Draw the compute of trainings over the years, and what one machine computes in 30 days."""
    colours = {APPROXIMATE: "@orange", STATED: "@blue"}
    return Plot(
        name="trend", title="What a training needs, and what one machine gives",
        traces=[
            {"x": [one.year for one in TRAININGS], "y": [one.petaflops_days for one in TRAININGS],
             "text": [one.name for one in TRAININGS], "mode": "markers+text", "name": "a training (approximate)",
             "textposition": ["bottom right"] * (len(TRAININGS) - 1) + ["top left"],  # away from the machine of 2022
             "marker": {"color": colours[APPROXIMATE], "size": 10},
             "hovertemplate": "%{text}, %{x}: about %{y:,} PF/s-days"},
            {"x": [2018, 2022], "y": [30 * speed for speed in MACHINES.values()], "text": list(MACHINES),
             "mode": "markers+text", "name": "one machine in 30 days (stated)",
             "textposition": ["top left", "top center"],
             "marker": {"color": colours[STATED], "size": 11, "symbol": "diamond"},
             "hovertemplate": "%{text}: %{y:,} PF/s-days in 30 days"},
        ],
        layout={"xaxis": {"title": "year", "range": [2010, 2025], "dtick": 2},
                "yaxis": {"title": "PF/s-days", "type": "log", "dtick": 1, "range": [-2.9, 4.4]}, "showlegend": True,
                "margin": {"l": 64, "r": 16, "t": 12, "b": 84}},
        note="Logarithmic scale. Orange: quoted from memory, good to a factor of about two.", height=400,
    )  # fmt: skip


def training_table() -> Table:
    """Return the trainings with their sizes, and how sure each row is."""
    rows: list[list[Cell]] = [
        [one.name, (one.year, str(one.year)), (one.parameters, digits(one.parameters / 1e6)),
         (one.examples, f"{digits(one.examples / 1e6)} {one.unit}"), (one.petaflops_days, digits(one.petaflops_days)),
         one.sureness]
        for one in TRAININGS
    ]  # fmt: skip
    heads = ["training", "year", "parameters, millions", "data, millions", "PF/s-days", "sureness"]
    return Table(
        title="Models, data and compute", heads=heads, rows=rows, note="Approximate: not checked at its source."
    )


def how_long(machines: int, efficiency: float) -> list[Drawn]:
    """Draw how long 1,000 PF/s-days take on several machines of each kind; one alone has nobody to wait for.

    >>> how_long(1, 0.5)[0].traces[0]["x"] == how_long(1, 1.0)[0].traces[0]["x"]
    True
    """
    efficiency = efficiency if machines > 1 else 1.0
    times = {name: days(NEEDED, speed, machines, efficiency) for name, speed in MACHINES.items()}
    plot = Plot(
        name="how-long", title=f"{NEEDED:,.0f} PF/s-days on {machines} {'machine' if machines == 1 else 'machines'}",
        traces=[{"type": "bar", "orientation": "h", "y": list(times), "x": [round(time, 2) for time in times.values()],
                 "text": [f"{digits(time)} days" for time in times.values()], "textposition": "auto",
                 "marker": {"color": ["@muted", "@blue"]}, "hovertemplate": "%{y}: %{x:,} days"}],
        layout={"xaxis": {"title": "days", "type": "log", "dtick": 1, "range": [-0.5, 3]}, "yaxis": {"title": ""},
                "margin": {"l": 110, "r": 16, "t": 12, "b": 48}},
        note="The work, divided by speed × machines × scaling efficiency (of one machine alone: 1).", height=230,
    )  # fmt: skip
    return [plot, Text("A server with two CPUs would take about a century (stated in the course).")]


SPEEDS = {1: 71_149, 2: 125_206, 4: 253_439, 8: 489_929}
"""images/s of a small CNN on 1 to 8 V100 GPUs with NVLink, local batch 2,048, stated in the course"""


def speed_of_workers() -> Plot:
    """Draw images/s against workers, with the line of perfect scaling."""
    workers = list(SPEEDS)
    return Plot(
        name="speed", title="Images per second on 1 to 8 GPUs",
        traces=[
            {"x": workers, "y": [SPEEDS[1] * n for n in workers], "mode": "lines", "name": "perfect scaling",
             "line": {"color": "@muted", "dash": "dash", "width": 1.5}, "hoverinfo": "skip"},
            {"x": workers, "y": list(SPEEDS.values()), "mode": "lines+markers", "name": "measured (stated)",
             "line": {"color": "@blue", "width": 2.5}, "marker": {"size": 8, "color": "@blue"},
             "customdata": [scaling_efficiency(speed, n, SPEEDS[1]) for n, speed in SPEEDS.items()],
             "hovertemplate": "%{x} GPUs: %{y:,} images/s, efficiency %{customdata:.0%}"},
        ],
        layout={"xaxis": {"title": "GPUs", "tickvals": workers}, "yaxis": {"title": "images/s", "rangemode": "tozero"},
                "showlegend": True, "margin": {"l": 72, "r": 16, "t": 12, "b": 84}},
        note="A small CNN, local batch 2,048, V100 GPUs joined by NVLink.", height=360,
    )  # fmt: skip
