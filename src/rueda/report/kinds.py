"""Which files a page can show, and the reader that turns each kind into a section.

A reader is a function ``to_section(record) -> Section`` that fills in sentences (``told``), ``tables`` and ``plots``. A
new kind of record needs only a reader and a line here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rueda.files.text import read_text
from rueda.records.assessment import Assessment, Gradebook
from rueda.records.curvature import Curvature
from rueda.records.descent import GradientDescent
from rueda.records.forecast import Forecast
from rueda.records.json_record import JsonRecord
from rueda.records.landscape import Landscape
from rueda.records.parallelism import Parallelism
from rueda.records.plan import Plan
from rueda.records.profile import Profile
from rueda.records.script_check import ScriptCheck
from rueda.records.steps_to_target import StepsToTarget
from rueda.records.study import Study
from rueda.records.throughput import Throughput
from rueda.report import assessments, curvature, forecasts, landscapes, plans, profiles, script_checks
from rueda.report.model import Section

READERS: dict[type[JsonRecord], Callable[[Any], Section]] = {
    Profile: profiles.to_section,
    Plan: plans.to_section,
    Forecast: forecasts.to_section,
    Landscape: landscapes.to_section,
    Curvature: curvature.to_section,
    ScriptCheck: script_checks.to_section,
    Assessment: assessments.to_section,
    Gradebook: assessments.class_to_section,
}
"""the reader of each record that makes a section of its own"""
STUDIES = (Study, Throughput, StepsToTarget, GradientDescent, Parallelism)
"""the records of a study folder, which share a section"""
FILES = (*(record.FILE for record in STUDIES), *(record.FILE for record in READERS))
_KINDS = {
    record.kind: record.FILE
    for record in (*STUDIES, Plan, Forecast, Landscape, Curvature, ScriptCheck, Assessment, Gradebook)
}


def found_in(path: Path) -> dict[str, Path]:
    """Return the files that a page can show, by their usual names: those of a folder, or the file itself."""
    if path.is_dir():
        return {name: path / name for name in FILES if (path / name).is_file()}
    name = kind_of(path)
    return {} if name is None else {name: path}


def kind_of(file: Path) -> str | None:
    """Recognise a file of any name by its content; return the name that it usually has, or None.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "glyphs.json")
    >>> _ = file.write_text('{"format": 1, "task": "glyphs-cnn", "gradient_bytes": 4, "steps": []}')
    >>> kind_of(file)
    'profile.json'
    """
    try:
        data: Any = json.loads(read_text(file))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(data, dict):
        return None
    kind = data.get("kind")
    if kind is None:  # a profile has no such field: it is recognised by what it holds
        return Profile.FILE if {"steps", "gradient_bytes"} <= data.keys() else None
    return _KINDS.get(kind) if isinstance(kind, str) else None


def read_others(found: Mapping[str, Path]) -> list[Section]:
    """Read each file that makes a section of its own.

    Raises:
        RuedaError: a file is damaged.
    """
    sections = []
    for kind, to_section in READERS.items():
        if kind.FILE in found:
            record = kind.load(found[kind.FILE])
            sections.append(to_section(record))
            sections[-1].environments.append(record.provenance)
    return sections
