"""Exercises: a cell to fill in, whose function is run and compared with the library's."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rueda import jobs
from rueda.errors import JobError, JobTimeout
from rueda.jobs import Job, Stopped
from rueda.labs import progress
from rueda.labs.answering import check_of
from rueda.labs.questions import response
from rueda.labs.showing import inline
from rueda.labs.trial import TrialAnswer, TrialRequest

SECONDS = 20
"""how long a learner's function may run"""


@dataclass
class Exercise:
    """An exercise; how it is judged is in ``rueda/labs/answers``.

    Args:
        key: the lab's number, a point and a name: ``1.gradient``.
        text: the task; ``**bold**`` and `` `code` `` are the only marks.
        start: the skeleton that the learner fills in.
    """

    key: str
    text: str
    start: str
    _wrong: int = field(default=0, repr=False)

    def ask(self) -> Any:
        """Return marimo's editor with a button; its ``value`` is None until the learner runs it."""
        import marimo as mo

        editor = mo.ui.code_editor(value=self.start, language="python", min_height=80, label=self.text)
        return editor.form(submit_button_label="Run and check", bordered=True)

    def judge(self, source: str | None) -> Judgement:
        """Run the learner's function on the cases and compare with the library; None: not run yet."""
        if source is None:
            return Judgement(exercise=self, text=progress.mark(self.key))
        check = check_of(self.key)
        found = _try(source, check.function, check.cases)
        problem = found.error
        for case, result in zip(check.cases, found.results, strict=False):
            expected = check.expected(*case)
            if problem is None and not close(result, expected, check.tolerance):
                call = f"{check.function}({', '.join(map(_short, case))})"
                problem = f"`{call}` gave {_short(result)}; the library gives {_short(expected)}."
        progress.note(self.key, right=problem is None)
        if problem is None:
            return Judgement(exercise=self, right=True, text=check.why)
        self._wrong += 1
        said = found.printed.strip().replace("`", "'")
        printed = f" It printed: `{said if len(said) <= 400 else said[:397] + '...'}`" if said else ""
        return Judgement(exercise=self, right=False, text=f"{problem} {check.hint(self._wrong)}{printed}")


def close(found: Any, expected: Any, tolerance: float) -> bool:
    """Whether two results agree: numbers to a relative error, lists part by part, anything else exactly.

    >>> close([1.0, 2], [1.0000001, 2], 1e-6), close([1.0], [1.0, 2.0], 1e-6), close("a", 1, 1e-6), close(True, 1, 1e-6)
    (True, False, False, False)
    """
    if isinstance(expected, (list, tuple)):
        return (
            isinstance(found, list)
            and len(found) == len(expected)
            and all(close(one, other, tolerance) for one, other in zip(found, expected, strict=True))
        )
    if isinstance(expected, (int, float)) and not isinstance(expected, bool):
        is_number = isinstance(found, (int, float)) and not isinstance(found, bool)
        return is_number and math.isclose(found, expected, rel_tol=tolerance, abs_tol=tolerance * 1e-3)
    return type(found) is type(expected) and bool(found == expected)


def _try(source: str, function: str, cases: Sequence[Sequence[Any]]) -> TrialAnswer:
    request = TrialRequest(source=source, function=function, cases=tuple(map(tuple, cases)))
    try:
        return jobs.run(Job(function="rueda.labs.trial:run", request=request, answer=TrialAnswer), timeout=SECONDS)
    except JobTimeout:
        return TrialAnswer(error=f"The function was still running after {SECONDS} seconds.")
    except (JobError, Stopped):  # it called sys.exit, or ended its process by a signal
        return TrialAnswer(error="The process ended without a result.")


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = "[" + ", ".join(map(_short, value)) + "]" if isinstance(value, (list, tuple)) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The response to an exercise; in a static page, the task and its skeleton."""

    exercise: Exercise
    right: bool | None = None
    """None: not run yet"""
    text: str = ""

    def _mime_(self) -> tuple[str, str]:
        return "text/html", response(self.right, self.text)

    def static(self) -> str:
        """Return the task and the skeleton: code runs only in the live lab."""
        one = self.exercise
        number = one.key.partition(".")[0]
        return (
            f'<div class="exercise"><p><b>Exercise.</b> {inline(one.text)}</p>'
            f'<pre tabindex="0">{html.escape(one.start)}</pre>'
            f'<p class="source">Run <code>rueda lab {number}</code> to try this.</p></div>'
        )
