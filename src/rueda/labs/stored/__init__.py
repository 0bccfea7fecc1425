"""Results of this project that the labs show, shipped with the package: an installed Rueda has no ``docs`` folder.

Each file is the record of the same name under ``docs/results`` or ``benchmarks/results``, without what no lab shows,
and names that file as its ``origin``. ``tests/labs/stored_results.py`` makes them, and a test compares them with the
originals.

=========================  ================================================================
``study-NAME``             :class:`~rueda.records.study.Study`: the technique table
``forecast-NAME``          :class:`~rueda.records.forecast.Forecast`: a learning curve
``steps-NAME``             :class:`~rueda.records.steps_to_target.StepsToTarget`
``curvature-NAME``         :class:`~rueda.records.curvature.Curvature`, the Hessians
``noise-NAME``             the gradient noise scale along a training
``predictions``            throughput as predicted by a plan, and as measured
=========================  ================================================================
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from rueda.errors import LabError, suggest
from rueda.labs.showing import Source
from rueda.records.json_record import JsonRecord

Record = TypeVar("Record", bound=JsonRecord)


def names() -> list[str]:
    """List the stored results.

    >>> "study-cifar10-8-workers" in names()
    True
    """
    return sorted(file.stem for file in Path(__file__).parent.glob("*.json"))


def path(name: str) -> Path:
    """Return the file of a stored result.

    Raises:
        LabError: there is no such result.
    """
    file = Path(__file__).with_name(f"{name}.json")
    if not file.is_file():
        do = suggest(name, names(), f"choose one of {', '.join(names())}")
        raise LabError("stored result", expected="a known one", got=name, do=do)
    return file


@cache
def contents(name: str) -> dict[str, Any]:
    """Return a stored result as it is in its file."""
    found: dict[str, Any] = json.loads(path(name).read_text(encoding="utf-8"))
    return found


def load(kind: type[Record], name: str) -> Record:
    """Read a stored result as a record.

    >>> from rueda.records.study import Study
    >>> load(Study, "study-glyphs-8-workers").row("naive").updates
    92
    """
    return kind.load(path(name))


def origin(name: str) -> str:
    """Return the file of the repository that a stored result is from.

    >>> origin("predictions")
    'benchmarks/results/plan.json'
    """
    return str(contents(name)["origin"])


def provenance(name: str) -> dict[str, Any]:
    """Return the machine, versions, command and commit of a stored result."""
    return dict(contents(name)["environment"])


def line(name: str) -> str:
    """Say where a stored result is from: its file, its commit, and whether that was a modified tree.

    >>> line("predictions")
    'From a stored run of this project: benchmarks/results/plan.json, commit 7dd2cf3faf27.'
    >>> line("study-cifar10-64-workers").endswith("(files differed from it).")
    True
    """
    commit = str(provenance(name).get("commit") or "")
    at = f", commit {commit.removesuffix('+')}{' (files differed from it)' * commit.endswith('+')}" if commit else ""
    return f"From a stored run of this project: {origin(name)}{at}."


def source(name: str) -> Source:
    """Return the source of a figure that shows one stored result."""
    return Source(live=line(name), static=line(name))


SEVERAL = Source(
    live="From stored runs of this project; the line above the figure says which.",
    static="From stored runs of this project; the line above the figure says which.",
)
"""the source of a figure that shows one of several stored results, with :func:`line` above it"""
