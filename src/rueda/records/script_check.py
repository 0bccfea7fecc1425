"""The result of ``rueda check``: each check of a distributed script, with its places and cures, as ``check.json``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from rueda.records.json_record import JsonRecord, PositiveInt, one_of

PASSED, FAILED, WARNING, ADVICE, NOT_SEEN = "passed", "failed", "warning", "advice", "not seen"
STATUSES = (FAILED, WARNING, ADVICE, PASSED, NOT_SEEN)
"""what a check may say, the gravest first"""


@dataclass(frozen=True)
class Verdict:
    """The result of one check.

    Args:
        check: the name of the check, such as ``same-batches``.
        status: ``passed``, ``failed``, ``warning``, ``advice`` or ``not seen``.
        what: what was found, in a sentence; why it could not be seen.
        where: the places in the script, such as ``train.py:34``.
        cure: what to do, in a sentence.
    """

    check: str
    status: Annotated[str, one_of(*STATUSES)]
    what: str = ""
    where: tuple[str, ...] = ()
    cure: str = ""


@dataclass(frozen=True, kw_only=True)
class ScriptCheck(JsonRecord):
    """All checks of a script."""

    FILE: ClassVar = "check.json"
    NOUN: ClassVar = "the result of a check"
    COMMAND: ClassVar = "rueda check -np 2 train.py --output check.json"

    script: str
    """the script and its arguments"""
    workers: PositiveInt
    """number of workers on which it ran"""
    script_status: int = 0
    """the exit status of the script itself"""
    checks: tuple[Verdict, ...] = ()
    """the result of every check, in the order of the table"""
    kind: str = "check"

    @property
    def has_failed(self) -> bool:
        """Whether a mistake was found; warnings and advice are none."""
        return any(one.status == FAILED for one in self.checks)

    def with_status(self, *statuses: str) -> list[Verdict]:
        """Return the checks with one of these results, in the order of the results."""
        return [one for status in statuses for one in self.checks if one.status == status]

    @property
    def summary(self) -> str:
        """How many checks have each result.

        >>> ScriptCheck(script="train.py", workers=2, checks=(Verdict("drift", PASSED),)).summary
        'passed: 1'
        """
        counts = {status: sum(one.status == status for one in self.checks) for status in STATUSES}
        return ", ".join(f"{status}: {count}" for status, count in counts.items() if count)
