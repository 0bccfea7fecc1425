"""A script as bytes and as a syntax tree: names with their full paths, parents, and where every statement stands."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cached_property

from rueda.errors import ScaleError

Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef
_DEEP = "brackets or blocks nested too deeply"


class Script:
    """A Python script that is read, and edited by position.

    Args:
        content: its bytes, in the encoding that they declare.
        name: how it is called in messages.

    Raises:
        ScaleError: the bytes are no Python.
    """

    def __init__(self, content: bytes, name: str) -> None:
        self.content, self.name = content, name
        try:
            self.encoding = tokenize.detect_encoding(io.BytesIO(content).readline)[0]
            text = content.decode(self.encoding)
            self.tree = ast.parse(text)
        except SyntaxError as error:
            where = f"{name}:{error.lineno}" if error.lineno else name
            raise ScaleError(where, expected="Python", got=error.msg, do="correct the script") from None
        except (ValueError, LookupError) as error:  # a NUL character, or bytes of another encoding
            got = "a file that is not text" if isinstance(error, UnicodeDecodeError) else str(error)
            raise ScaleError(name, expected="Python", got=got, do="correct the script") from None
        except (RecursionError, MemoryError):
            raise ScaleError(name, expected="Python", got=_DEEP, do="correct the script") from None
        self.text = text.encode()  # the positions of the syntax tree are those of UTF-8
        self.newline = "\r\n" if b"\r\n" in self.text else "\n"
        self._starts = [0, *(match.end() for match in re.finditer(rb"\r\n|\r|\n", self.text))]
        self.parents = {child: parent for parent in ast.walk(self.tree) for child in ast.iter_child_nodes(parent)}
        self.imports = dict(_imports(self.tree))

    # What names mean.

    def path(self, node: ast.AST) -> str:
        """Return the full path of a name, with imports resolved: ``optim.SGD`` is ``torch.optim.SGD``."""
        if isinstance(node, ast.Name):
            return self.imports.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            return f"{self.path(node.value)}.{node.attr}"
        return ""

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes, in the order of the text where they have a place in it."""
        return sorted(
            ast.walk(self.tree), key=lambda node: (getattr(node, "lineno", 0), getattr(node, "col_offset", 0))
        )

    @cached_property
    def calls(self) -> list[ast.Call]:
        """All calls, in the order of the text."""
        return [node for node in self.nodes if isinstance(node, ast.Call)]

    def calls_of(self, *paths: str) -> list[ast.Call]:
        """Return all calls of functions with these paths."""
        return [call for call in self.calls if self.path(call.func) in paths]

    @cached_property
    def names(self) -> set[str]:
        """All names that the script uses."""
        found = {node.id for node in self.nodes if isinstance(node, ast.Name)} | set(self.imports)
        found |= {node.arg for node in self.nodes if isinstance(node, ast.arg)}
        return found | {node.name for node in self.nodes if isinstance(node, Function | ast.ClassDef)}

    def free_name(self, wanted: str) -> str:
        """Return a name that the script does not use: this one if possible."""
        return wanted if wanted not in self.names else self.free_name(f"{wanted}_")

    # What stands around a node.

    def statement(self, node: ast.AST) -> ast.stmt:
        """Return the innermost statement that holds a node."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """Iterate over the nodes around a node, from the inside."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def function(self, node: ast.AST) -> Scope:
        """Return the function that holds a node, or the module."""
        return next((each for each in self.around(node) if isinstance(each, Scope)), self.tree)

    def class_of(self, node: ast.AST) -> ast.ClassDef | None:
        """Return the class that holds a node."""
        return next((each for each in self.around(node) if isinstance(each, ast.ClassDef)), None)

    def block(self, statement: ast.stmt) -> list[ast.stmt]:
        """Return the statements among which a statement stands."""
        parent = self.parents[statement]
        for name in ("body", "orelse", "finalbody"):
            block = getattr(parent, name, None)
            if isinstance(block, list) and any(each is statement for each in block):
                return block
        raise AssertionError(f"{type(parent).__name__} has no such statement")

    # Where it stands.

    def source(self, node: ast.AST) -> str:
        """Return the text of a node."""
        low, high = self.span(node)
        return self.text[low:high].decode()

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Return where a node begins and ends, in bytes."""
        low = self._starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        return low, self._starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]

    def is_placed(self, node: ast.expr) -> bool:
        """Return whether the place of an expression is known; before Python 3.12 some in f-strings have a wrong one."""
        try:
            return ast.dump(ast.parse(f"({self.source(node)})", mode="eval").body) == ast.dump(_loaded(node))
        except (SyntaxError, ValueError):
            return False

    def first_line(self, statement: ast.stmt) -> int:
        """Return the number of the first line of a statement, with its decorators."""
        decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
        return min([statement.lineno, *(each.lineno for each in decorators)])

    def start(self, statement: ast.stmt) -> int:
        """Return where the first line of a statement begins."""
        return self._starts[self.first_line(statement) - 1]

    def end(self, statement: ast.stmt) -> int:
        """Return where the line after a statement begins."""
        line = statement.end_lineno or statement.lineno
        return self._starts[line] if line < len(self._starts) else len(self.text)

    def lines(self, statement: ast.stmt) -> Iterator[int]:
        """Iterate over the beginnings of the lines of a statement, without those inside strings and empty ones."""
        inside = {
            line
            for node in ast.walk(statement)
            if isinstance(node, ast.JoinedStr)
            or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))
            for line in range(node.lineno + 1, (node.end_lineno or 0) + 1)
        }
        for line in range(self.first_line(statement), (statement.end_lineno or 0) + 1):
            start = self._starts[line - 1]
            end = self._starts[line] if line < len(self._starts) else len(self.text)
            if line not in inside and self.text[start:end].strip():
                yield start

    def indentation(self, statement: ast.stmt) -> str:
        """Return the white space before a statement."""
        white = re.match(rb"[ \t\f]*", self.text[self.start(statement) :])
        return white.group().decode().replace("\f", "") if white else ""

    @cached_property
    def unit(self) -> str:
        """One level of indentation: that of the first block."""
        for node in self.nodes:
            body = getattr(node, "body", None)
            if not isinstance(node, ast.stmt) or not isinstance(body, list) or self.is_inline(body[0]):
                continue
            inner, outer = self.indentation(body[0]), self.indentation(node)
            if inner.startswith(outer) and inner != outer:
                return inner[len(outer) :]
        return "    "

    def is_inline(self, statement: ast.stmt) -> bool:
        """Return whether something else stands on the lines of a statement: ``if x: print(x)``, or ``a = 1; b = 2``."""
        low, high = self.span(statement)
        if self.text[self.start(statement) : low].strip() and not getattr(statement, "decorator_list", None):
            return True
        block = self.block(statement)
        after = [each for each in block if each.lineno == statement.end_lineno and self.span(each)[0] >= high]
        return bool(after)


def split_lines(script: Script, statements: list[ast.stmt]) -> Script:
    """Return the script with some statements, and those beside them, on lines of their own.

    >>> script = Script(b"if x: print(x); y = 1", "train.py")
    >>> print(split_lines(script, [script.tree.body[0].body[0]]).text.decode())
    if x:
        print(x)
        y = 1
    """
    changes: dict[int, tuple[int, str]] = {}
    for statement in statements:
        block = script.block(statement)
        for each in block:
            low, _ = script.span(each)
            start = script.start(each)
            before = script.text[start:low]
            if not before.strip() or getattr(each, "decorator_list", None):
                continue
            kept = before.rstrip(b" \t\f\\\r\n")
            first = block[0]
            opened = bool(script.text[script.start(first) : script.span(first)[0]].strip())  # after a colon
            indentation = script.indentation(first) + (script.unit if opened else "")
            low_kept = start + len(kept) - (1 if kept.endswith(b";") else 0)
            changes[low_kept] = (low, script.newline + indentation)
    parts, done = [], 0
    for position, (end, text) in sorted(changes.items()):
        parts += [script.text[done:position].rstrip(b" \t") if done < position else b"", text.encode()]
        done = end
    text = b"".join([*parts, script.text[done:]]).decode()
    return Script(text.encode(script.encoding), script.name)


def _loaded(node: ast.expr) -> ast.expr:
    """Return an expression as if it were read, not assigned to."""
    if isinstance(node, ast.Name):
        return ast.Name(node.id, ast.Load())
    if isinstance(node, ast.Attribute):
        return ast.Attribute(node.value, node.attr, ast.Load())
    return node


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (alias.asname, alias.name) if alias.asname else (alias.name.split(".")[0],) * 2
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"
