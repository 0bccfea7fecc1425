"""The reader of ``check.json``: what is wrong with a distributed script, where, and how it is mended."""

from __future__ import annotations

from rueda.records.script_check import ADVICE, FAILED, NOT_SEEN, PASSED, WARNING, ScriptCheck
from rueda.report.model import Section, Table


def to_section(found: ScriptCheck) -> Section:
    """Return the section about a script."""
    wrong = found.with_status(FAILED, WARNING, ADVICE)
    tables = [Table.of("What was found", wrong, _FOUND)] if wrong else []
    rest = found.with_status(PASSED, NOT_SEEN)
    return Section(
        title=f"{found.script} on {found.workers} workers: checks", task=found.script, told=[_told(found)],
        tables=[*tables, Table.of("The other checks", rest, _REST)],
    )  # fmt: skip


def _told(found: ScriptCheck) -> str:
    ended = "" if not found.script_status else f" The script itself has ended with status {found.script_status}."
    return f"rueda check has run {found.script} on {found.workers} workers: {found.summary}.{ended}"


_FOUND = {
    "result": lambda one: one.status,
    "check": lambda one: one.check,
    "what was found": lambda one: one.what,
    "where": lambda one: ", ".join(one.where),
    "cure": lambda one: one.cure,
}
_REST = {
    "result": lambda one: one.status,
    "check": lambda one: one.check,
    "note": lambda one: one.what,
}
