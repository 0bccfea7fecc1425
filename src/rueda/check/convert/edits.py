"""Edits of a script by position: every byte that they do not name stays as it is."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from rueda.check.convert.script import Script

_AFTER, _BEFORE, _HEAD, _INDENT, _OPEN, _TEXT, _CLOSE = range(7)  # what comes first where several meet


class Inline(Exception):
    """Lines were to be added beside a statement that shares its line with others."""

    def __init__(self, statement: ast.stmt) -> None:
        super().__init__()
        self.statement = statement


@dataclass
class Edits:
    """Changes of a script, applied together; lines that are inserted get the indentation of their statement."""

    script: Script
    _changes: list[tuple[int, int, int, int, str]] = field(default_factory=list)
    _guarded: list[tuple[int, int]] = field(default_factory=list)
    _inserted: set[tuple[int, str]] = field(default_factory=set)

    def replace(self, node: ast.AST, text: str) -> None:
        """Replace the text of an expression."""
        low, high = self.script.span(node)
        self._change(low, high, _TEXT, text)

    def enclose(self, node: ast.AST, before: str, after: str) -> None:
        """Write something before and after an expression."""
        low, high = self.script.span(node)
        self._change(low, low, _OPEN, before)
        self._change(high, high, _CLOSE, after)

    def before(self, statement: ast.stmt, *lines: str) -> None:
        """Insert lines before a statement; the same lines only once."""
        self._insert(self._own(statement), self.script.start(statement), _BEFORE, lines)

    def after(self, statement: ast.stmt, *lines: str) -> None:
        """Insert lines after a statement."""
        self._insert(self._own(statement), self.script.end(statement), _AFTER, lines)

    def guard(self, statements: list[ast.stmt], head: str) -> None:
        """Put statements that follow each other under the head of a block, such as an ``if``."""
        for statement in statements:
            self._own(statement)
        self._insert(statements[0], self.script.start(statements[0]), _HEAD, (head,))
        self._guarded.append((self.script.start(statements[0]), self.script.end(statements[-1])))
        for statement in statements:
            for start in self.script.lines(statement):
                self._change(start, start, _INDENT, self.script.unit)

    def at_end(self, *lines: str) -> None:
        """Append lines to the script."""
        self._insert(None, len(self.script.text), _AFTER, lines)

    def _own(self, statement: ast.stmt) -> ast.stmt:
        if self.script.is_inline(statement):
            raise Inline(statement)
        return statement

    def _insert(self, statement: ast.stmt | None, position: int, order: int, lines: tuple[str, ...]) -> None:
        indentation = "" if statement is None else self.script.indentation(statement)
        unit, newline = self.script.unit, self.script.newline
        text = ""
        for line in lines:
            inner = len(line) - len(line.lstrip(" "))
            line = unit * (inner // 4) + line.lstrip(" ")
            text += f"{indentation}{line}{newline}" if line else newline
        if position == len(self.script.text) and not self.script.text.endswith((b"\n", b"\r")):
            text = newline + text.removesuffix(newline)  # a file without a newline at its end stays one
        if (position, text) not in self._inserted or order == _HEAD:
            self._inserted.add((position, text))
            self._change(position, position, order, text)

    def _change(self, low: int, high: int, order: int, text: str) -> None:
        self._changes.append((low, high, order, len(self._changes), text))

    def apply(self) -> bytes:
        """Return the script's bytes with all changes."""
        text, done, parts = self.script.text, 0, []
        for low, high, order, _, new in sorted(self._changes, key=lambda change: (change[0], change[2], change[3])):
            if order in (_AFTER, _BEFORE, _HEAD):  # lines within a block that was indented
                inner = self.script.unit * sum(start < low < end for start, end in self._guarded)
                new = "".join(inner + line if line.strip() else line for line in new.splitlines(keepends=True))
            parts += [text[done:low], new.encode()]
            done = max(done, high)
        return b"".join([*parts, text[done:]]).decode().encode(self.script.encoding)

    def text(self) -> str:
        """Return all that is written, in any order."""
        return "\n".join(new for *_, new in self._changes)
