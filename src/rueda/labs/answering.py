"""What is right: the answers of questions and the checks of exercises, and how a given answer is compared with them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from rueda.errors import LabError


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer of a question.

    A number is compared on a grid: with ``cell = floor(number / tolerance + 1/2)``, an answer is right if its cell is
    that of the right number or one beside it. A static page holds only a hash of the right cell.
    """

    right: str | float | Callable[[], str | float]
    """the right choice or number, or a function that computes it"""
    why: str
    """shown after a right answer"""
    hints: Sequence[str]
    """shown after the first wrong answer, the second, and so on; the last one again and again"""
    tolerance: float = 0.0
    """of a number: how far an answer may be off, about"""

    @property
    def value(self) -> str | float:
        """The right choice or number."""
        return self.right() if callable(self.right) else self.right

    def cells(self, given: str | float) -> list[str]:
        """Return the texts one of which equals :attr:`cell` if ``given`` is right.

        >>> Answer(right=0.0293, why="", hints=[""], tolerance=0.0005).cells(0.0291)
        ['58', '57', '59']
        """
        if isinstance(given, str):
            return [given]
        at = self._cell(given)
        return [str(at), str(at - 1), str(at + 1)]

    @property
    def cell(self) -> str:
        """The text that an answer has to match: the choice, or the cell of the number."""
        value = self.value
        return value if isinstance(value, str) else str(self._cell(value))

    def _cell(self, number: float) -> int:
        return math.floor(number / self.tolerance + 0.5)

    def accepts(self, given: str | float) -> bool:
        """Whether an answer is right.

        >>> bound = Answer(right=0.0293, why="", hints=[""], tolerance=0.0005)
        >>> bound.accepts(0.029), bound.accepts(0.03), bound.accepts(0.0312)
        (True, True, False)
        """
        if isinstance(given, str) != isinstance(self.value, str):
            return False
        return (isinstance(given, str) or math.isfinite(given)) and self.cell in self.cells(given)

    def hint(self, tries: int) -> str:
        """Return the hint after so many wrong answers."""
        return self.hints[min(tries, len(self.hints)) - 1]


@dataclass(frozen=True, kw_only=True)
class Check:
    """How an exercise is judged: the learner's function is compared with one of the library on some cases."""

    function: str
    """name of the function that the learner writes"""
    cases: Sequence[Sequence[Any]]
    """arguments of each call: numbers, texts, and lists of such"""
    expected: Callable[..., Any]
    """the function of the library that computes the same; it takes the same arguments"""
    why: str
    hints: Sequence[str]
    solution: str
    """the source of a right answer, for teachers and for the tests"""
    tolerance: float = 1e-6
    """largest relative error"""

    def hint(self, tries: int) -> str:
        """Return the hint after so many wrong answers."""
        return self.hints[min(tries, len(self.hints)) - 1]


def answer_of(key: str) -> Answer:
    """Return the answer of a question such as ``1.updates``."""
    return _find(key, "ANSWERS")  # type: ignore[no-any-return]


def check_of(key: str) -> Check:
    """Return the check of an exercise such as ``1.gradient``."""
    return _find(key, "CHECKS")  # type: ignore[no-any-return]


def items(lab: int) -> list[str]:
    """Return the keys of all questions and exercises of a lab, in their order."""
    return [*_table(lab, "ANSWERS"), *_table(lab, "CHECKS")]


def _find(key: str, table: str) -> Any:
    number, _, name = key.partition(".")
    if not (number.isdigit() and name):
        raise LabError("key", expected="a lab's number, a point and a name, such as 1.updates", got=key, do="rename it")
    found = _table(int(number), table)
    if key not in found:
        raise LabError("key", expected=f"one in {table} of rueda.labs.answers.lab_{number}", got=key, do="add it there")
    return found[key]


def _table(lab: int, name: str) -> Mapping[str, Any]:
    try:
        module = import_module(f"rueda.labs.answers.lab_{lab}")
    except ModuleNotFoundError:
        return {}
    found: Mapping[str, Any] = getattr(module, name, {})
    return found


def digest(salt: str, text: str) -> str:
    """Return the salted hash that a static page holds in place of an answer.

    >>> digest("1.updates", "100")[:12]
    'ef79df391dd9'
    """
    return hashlib.sha256(f"{salt}\n{text}".encode()).hexdigest()


def sealed(salt: str, key: str, text: str) -> str:
    """Encrypt a text with an answer, so that a static page shows it only to who has found the answer (hexadecimal).

    >>> sealed("1.updates", "100", "yes") == sealed("1.updates", "101", "yes")
    False
    """
    plain = text.encode()
    stream = b"".join(
        hashlib.sha256(f"{salt}\n{key}\n{block}".encode()).digest() for block in range(len(plain) // 32 + 1)
    )
    return bytes(one ^ other for one, other in zip(plain, stream, strict=False)).hex()
