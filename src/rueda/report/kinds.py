"""The kinds of files beside runs and studies, and who reads each into a section of the page.

A reader is a module of this folder with ``read(place: Path) -> Section``, of the file or its folder: sentences
(``told``), ``tables`` and ``plots`` are all that it fills in. A new kind of file needs its line here and its reader,
and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from rueda.report.model import Section

KINDS = {
    "profile.json": "profiles",
    "plan.json": "plans",
    "forecast.json": "forecasts",
    "landscape.json": "landscapes",
    "curvature.json": "curvature",
}
"""the file, and the module that reads it"""
STUDIES = {
    "study.json": "techniques",
    "throughput.json": "throughput",
    "steps.json": "steps-to-target",
    "gd.json": "gd",
}
"""the files of a study folder, and what each must say of itself"""


def found_in(place: Path) -> dict[str, Path]:
    """List the files of studies and of these kinds: those of a folder, or the file itself, whatever it is called."""
    if place.is_dir():
        return {name: place / name for name in (*STUDIES, *KINDS) if (place / name).is_file()}
    name = kind_of(place)
    return {} if name is None else {name: place}


def kind_of(file: Path) -> str | None:
    """Tell by its content what a file of any name is: the name under which it stands in a folder, or None.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "glyphs.json")
    >>> _ = file.write_text('{"format": 1, "task": "glyphs-cnn", "gradient_bytes": 4, "steps": []}')
    >>> kind_of(file)
    'profile.json'
    """
    try:
        data: Any = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(data, dict):
        return None
    kind = data.get("kind")
    if kind is None:  # a profile says what it is by what it holds
        return "profile.json" if {"steps", "gradient_bytes"} <= data.keys() else None
    names = {kind: name for name, kind in STUDIES.items()} | {name.removesuffix(".json"): name for name in KINDS}
    return names.get(kind) if isinstance(kind, str) else None


def read_kinds(found: Mapping[str, Path]) -> list[Section]:
    """Read each file of these kinds into a section.

    Raises:
        RuedaError: a file is damaged.
    """
    sections: list[Section] = []
    for name in (name for name in KINDS if name in found):
        section: Section = import_module(f"rueda.report.{KINDS[name]}").read(found[name])
        sections.append(section)
    return sections
