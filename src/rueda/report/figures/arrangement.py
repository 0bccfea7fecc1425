"""Which figures a section of runs and studies has, and in which rows they stand on the page."""

from __future__ import annotations

from rueda.report.figures.linear_model import contours, surface
from rueda.report.figures.progress import measures, progress
from rueda.report.figures.schedule import batch, rate
from rueda.report.figures.speed import speed
from rueda.report.figures.steps import steps
from rueda.report.figures.techniques import techniques
from rueda.report.figures.throughput import throughput
from rueda.report.model import Section
from rueda.report.plot import Plot


def training_figures(section: Section) -> list[list[Plot]]:
    """Draw the rows of figures that stand above the tables; a figure without data is not made."""
    measured = [entry for entry in section.entries if entry.test_accuracy is not None or entry.diverged]
    scheduled = {name for line in section.lines for name in line.schedule}
    rows = [
        [techniques(section)] if section.is_study and len(measured) > 1 else [],
        [progress(section)] if measures(section) else [],
        [*([rate(section)] if "rate" in scheduled else []), *([batch(section)] if "global_batch" in scheduled else [])],
        [speed(section)] if any(entry.images_per_second is not None for entry in section.entries) else [],
        [
            *([throughput(section.throughput)] if section.throughput and section.throughput.points else []),
            *([steps(section.steps)] if section.steps and any(point.updates for point in section.steps.points) else []),
        ],
        [surface(section.descent), contours(section.descent)] if section.descent else [],
    ]
    return [row for row in rows if row]
