"""Choose the figures about training runs, and arrange them in rows."""

from __future__ import annotations

from rueda.report.figures.progress import measures, progress
from rueda.report.figures.schedule import batch, rate
from rueda.report.figures.speed import measured_speeds, speed
from rueda.report.figures.techniques import techniques
from rueda.report.model import Section
from rueda.report.plot import Plot


def training_figures(section: Section) -> list[list[Plot]]:
    """Return the rows of figures; a figure without data is left out."""
    measured = [entry for entry in section.entries if entry.test is not None or entry.diverged]
    rows = [
        [techniques(section)] if section.is_study and len(measured) > 1 else [],
        [progress(section)] if measures(section) else [],
        [
            *([rate(section)] if any(line.rate for line in section.lines) else []),
            *([batch(section)] if any(line.batch for line in section.lines) else []),
        ],
        [speed(section)] if len(measured_speeds(section)) > 1 else [],
    ]
    return [row for row in rows if row]
