"""The kinds of files beside runs and studies, and who reads each into a section of the page.

A reader is a module of this folder with ``read(folder: Path) -> Section``: sentences (``told``), ``tables`` and
``plots`` are all that it fills in. A new kind of file needs its line here and its reader, and nothing else.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from rueda.report.model import Section

KINDS = {
    "profile.json": "profiles",
    "plan.json": "plans",
    "forecast.json": "forecasts",
    "landscape.json": "landscapes",
    "curvature.json": "curvature",
}
"""the file, and the module that reads it"""


def kinds_in(folder: Path) -> list[str]:
    """Name the files of these kinds that a folder holds."""
    return [name for name in KINDS if (folder / name).is_file()]


def read_kinds(folder: Path) -> list[Section]:
    """Read each into a section.

    Raises:
        RuedaError: a file is damaged.
    """
    found: list[Section] = []
    for name in kinds_in(folder):
        section: Section = import_module(f"rueda.report.{KINDS[name]}").read(folder)
        found.append(section)
    return found
