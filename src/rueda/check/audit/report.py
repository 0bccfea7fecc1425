"""The result of a check in words: what was found, with its place and cure, then the table of all checks."""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from typing import Any

from rueda.check.audit.judge.verdict import ADVICE, CHECKS, FAILED, NOT_SEEN, PASSED, WARNING, Verdict
from rueda.terminal.table import TextTable

_ORDER = (FAILED, WARNING, ADVICE)


def findings(verdicts: Sequence[Verdict]) -> list[str]:
    """Return a paragraph for each mistake, warning and piece of advice, the gravest first."""
    found = [one for status in _ORDER for one in verdicts if one.status == status]
    return [_paragraph(one) for one in found]


def _paragraph(verdict: Verdict) -> str:
    lines = [f"{verdict.status}: {verdict.check}: {verdict.what}."]
    for where in verdict.where:
        file, _, number = where.rpartition(":")
        text = linecache.getline(file, int(number)).strip() if number.isdigit() else ""
        lines.append(f"    {where}: {text}" if text else f"    {where}")
    if verdict.cure:
        lines.append(f"    cure: {verdict.cure}.")
    return "\n".join(lines)


def table(verdicts: Sequence[Verdict], *, title: str) -> TextTable:
    """Return the table of all checks."""
    rows = [[one.check, CHECKS[one.check], one.status, "" if one.status in _ORDER else one.what] for one in verdicts]
    counts = {status: sum(one.status == status for one in verdicts) for status in (PASSED, *_ORDER, NOT_SEEN)}
    caption = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    return TextTable(
        title, ["check", "what holds", "result", "note"], rows, left=["check", "what holds", "result", "note"],
        optional=["note"], caption=caption,
    )  # fmt: skip


def as_json(verdicts: Sequence[Verdict], *, script: str, workers: int, status: int) -> dict[str, Any]:
    """Return the result as plain values."""
    return {
        "script": script, "workers": workers, "script_status": status,
        "checks": [
            {"check": one.check, "status": one.status, "what": one.what, "where": list(one.where), "cure": one.cure}
            for one in verdicts
        ],
    }  # fmt: skip
