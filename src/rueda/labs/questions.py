"""Questions with checkable answers: a choice or a number, and a reply with a hint after a wrong one.

>>> question = Question("0.sum", "How much is 1 + 1?", unit="apples")
>>> question.text
'How much is 1 + 1?'
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rueda.errors import LabError
from rueda.labs import progress
from rueda.labs.answering import Answer, answer_of, digest, sealed
from rueda.labs.showing import inline
from rueda.report.escape import to_html


@dataclass
class Question:
    """A question; its answer is in ``rueda/labs/answers``.

    Args:
        key: the lab's number, a point and a name: ``1.updates``.
        text: the question; ``**bold**`` and `` `code` `` are the only marks.
        choices: the possible answers; empty: the answer is a number.
        unit: what the number counts, and how exact it has to be: ``updates``, ``ms, to 5 %``.
    """

    key: str
    text: str
    choices: Sequence[str] = ()
    unit: str = ""
    _wrong: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        if bool(self.choices) == bool(self.unit):
            raise LabError(f"question {self.key}", expected="choices, or a unit", got=self.choices, do="give one")

    def ask(self) -> Any:
        """Return marimo's form; its ``value`` is None until the learner submits an answer."""
        import marimo as mo

        if self.choices:
            element: Any = mo.ui.radio(options=list(self.choices), label=self.text)
        else:  # a form's own label would be centred, and that of a text field squeezes it on a phone
            text = f"{self.text}\n\n{{number}} {self.unit}"
            element = mo.md(text).batch(number=mo.ui.text(placeholder="a number"))
        return element.form(submit_button_label="Check", bordered=True)

    def reply(self, given: str | float | Mapping[str, str] | None) -> Reply:
        """Judge what a form holds, keep the result in the learner's progress, and respond; None: not answered."""
        if isinstance(given, Mapping):
            given = given["number"]
        if given is None or given == "":
            return Reply(question=self, text=progress.mark(self.key))
        answer = answer_of(self.key)
        if not self.choices:
            read = number_in(str(given))
            if read is None:
                return Reply(question=self, right=False, text=f"Please give a number, not {given!r}.")
            given = read
        right = answer.accepts(given)
        progress.note(self.key, right=right)
        self._wrong += not right
        return Reply(question=self, right=right, text=answer.why if right else answer.hint(self._wrong))


def number_in(text: str) -> float | None:
    """Read a number as people write it: a comma before three digits groups them, any other is a decimal point.

    >>> number_in("1,000"), number_in(" 2.9e-2 "), number_in("50 %"), number_in("many"), number_in("4,3")
    (1000.0, 0.029, 50.0, None, 4.3)
    """
    text = text.replace("%", "").strip()
    grouped = re.fullmatch(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?", text)
    try:
        return float(text.replace(",", "" if grouped else "."))
    except ValueError:
        return None


@dataclass(frozen=True, kw_only=True)
class Reply:
    """The response to an answer; in a static page, the whole question."""

    question: Question
    right: bool | None = None
    """None: not answered yet"""
    text: str = ""

    def _mime_(self) -> tuple[str, str]:
        return "text/html", response(self.right, self.text)

    def static(self) -> str:
        """Return the question as a form that the script of a static page judges, by the hash of the answer."""
        one, answer = self.question, answer_of(self.question.key)
        if one.choices:
            fields = "".join(
                f'<label><input type="radio" name="{to_html(one.key)}" value="{to_html(text)}"> {to_html(text)}</label>'
                for text in one.choices
            )
        else:
            fields = (
                f'<label><input type="text" inputmode="decimal" autocomplete="off" name="{to_html(one.key)}"> '
                f"{inline(one.unit)}</label>"
            )
        return (
            f'<form class="question" data-answer="{to_html(json.dumps(_hidden(one.key, answer)))}">'
            f'<p>{inline(one.text)}</p><div class="fields">{fields}</div><button>Check</button>'
            f'<div class="reply" role="status"></div></form>'
        )


def _hidden(key: str, answer: Answer) -> dict[str, Any]:
    """Return what a static page needs to judge an answer, without the answer."""
    cell = answer.cell
    return {
        "salt": key, "digest": digest(key, cell), "tolerance": answer.tolerance,
        "hints": [inline(hint) for hint in answer.hints], "why": sealed(key, cell, inline(answer.why)),
    }  # fmt: skip


def response(right: bool | None, text: str) -> str:
    """Return the HTML of a response, which marimo's page has no style for, so it brings its own."""
    if right is None:
        return f'<div class="rueda-reply" style="margin:.2rem 0 .8rem;opacity:.75">{inline(text)}</div>' if text else ""
    colour, word = ("#00835f", "✓ Right.") if right else ("#c94c00", "✗ Not yet.")
    look = f"border-left:4px solid {colour};padding:.3rem .9rem;margin:.2rem 0 .8rem"
    return (
        f'<div class="rueda-reply" data-right="{str(right).lower()}" role="status" style="{look}">'
        f'<b style="color:{colour}">{word}</b> {inline(text)}</div>'
    )
