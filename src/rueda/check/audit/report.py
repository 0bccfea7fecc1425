"""The result of a check on the terminal: what was found, with its place and cure, then the table of all checks."""

from __future__ import annotations

import linecache

from rueda.check.audit.judge.checks import CHECKS
from rueda.check.audit.judge.journals import Journals
from rueda.records.script_check import ADVICE, FAILED, WARNING, ScriptCheck, Verdict
from rueda.terminal.table import TextTable

_FOUND = (FAILED, WARNING, ADVICE)


def findings(result: ScriptCheck) -> list[str]:
    """Return a paragraph for each mistake, warning and piece of advice, the gravest first."""
    return [_paragraph(one) for one in result.with_status(*_FOUND)]


def _paragraph(verdict: Verdict) -> str:
    lines = [f"{verdict.status}: {verdict.check}: {verdict.what}."]
    for where in verdict.where:
        file, _, number = where.rpartition(":")
        text = linecache.getline(file, int(number)).strip() if number.isdigit() else ""
        lines.append(f"    {where}: {text}" if text else f"    {where}")
    if verdict.cure:
        lines.append(f"    cure: {verdict.cure}.")
    return "\n".join(lines)


def unobserved(journals: Journals) -> list[str]:
    """Return a line if parts of the script could not be observed, with the first reason."""
    blind = journals.flat("blind")
    if not blind:
        return []
    rank, note = blind[0]
    reason = " ".join(note["text"].split())
    return [f"parts of the script could not be observed, such as on rank {rank}: {reason} ({note['where']})"]


def table(result: ScriptCheck) -> TextTable:
    """Return the table of all checks."""
    rows = [
        [one.check, CHECKS[one.check], one.status, "" if one.status in _FOUND else one.what] for one in result.checks
    ]
    headings = ["check", "what holds if it passes", "result", "note"]
    title = f"rueda check: {result.script} on {result.workers} workers"
    return TextTable(title, headings, rows, left=headings, optional=["note"], caption=result.summary)
