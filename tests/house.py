"""Which folder of src/rueda depends on which, read from the code; ``python tests/house.py`` renews the drawing.

A dependency is an import anywhere in a file (at its top, within a function, under ``if TYPE_CHECKING``), or a string
that names a module: ``"-m", "rueda.jobs.child"`` starts one, ``import_module(f"rueda.report.{name}")`` loads one.
Docstrings and comments may name any module.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "rueda"
BEGIN, END = "<!-- made by python tests/house.py -->", "<!-- end -->"

Graph = Mapping[str, set[str]]


@cache
def modules() -> dict[str, Path]:
    """Return every module of the package by its dotted name; a package is its ``__init__.py``."""
    found = {}
    for file in sorted(SOURCE.rglob("*.py")):
        parts = file.relative_to(SOURCE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def folder_of(module: str) -> str:
    """Return the folder of a module; a file beside the folders stands for itself, ``__main__`` for the commands.

    >>> folder_of("rueda.train.loop"), folder_of("rueda.errors"), folder_of("rueda"), folder_of("rueda.__main__")
    ('train', 'errors', '__init__', 'cli')
    """
    name = "__init__" if module == "rueda" else module.split(".")[1]
    return "cli" if name == "__main__" else name


def imported(tree: ast.AST, known: Iterable[str]) -> set[str]:
    """Find the modules that are imported anywhere in a syntax tree."""
    return {name for node in ast.walk(tree) for name in _of_statement(node, known)}


def imported_on_loading(tree: ast.Module, known: Iterable[str]) -> set[str]:
    """Find the modules that are imported while this one is: not in functions, not under ``if TYPE_CHECKING``."""
    found: set[str] = set()
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
            continue
        found |= _of_statement(node, known)
        waiting += ast.iter_child_nodes(node)
    return found


def named_in_strings(tree: ast.AST, known: Iterable[str]) -> set[str]:
    """Find the modules that string constants name, the constant parts of f-strings among them; docstrings may."""
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare:
            found |= {_longest(name, known) for name in re.findall(r"\brueda(?:\.\w+)+", node.value)}
        if isinstance(node, (ast.List, ast.Tuple)):
            words = [item.value if isinstance(item, ast.Constant) else None for item in node.elts]
            if ("-m", "rueda") in pairwise(words):
                found.add("rueda.__main__")
    return {name for name in found if name}


def _of_statement(node: ast.AST, known: Iterable[str]) -> set[str]:
    if isinstance(node, ast.ImportFrom) and node.level > 0:
        raise ValueError(f"line {node.lineno}: expected an import by its whole name, got a relative one")
    if isinstance(node, ast.Import):
        return {_longest(alias.name, known) for alias in node.names if alias.name.split(".")[0] == "rueda"}
    if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "rueda":
        return {_longest(f"{node.module}.{alias.name}", known) or "rueda" for alias in node.names}
    return set()


def _longest(name: str, known: Iterable[str]) -> str:
    """Return the module that a dotted name leads to: itself or the nearest above; the package alone is none."""
    parts = name.split(".")
    for count in range(len(parts), 1, -1):
        if ".".join(parts[:count]) in known:
            return ".".join(parts[:count])
    return ""


def trees() -> Iterator[tuple[str, ast.Module]]:
    """Parse every module."""
    for module, file in modules().items():
        yield module, ast.parse(file.read_text(encoding="utf-8"))


@cache
def folders() -> dict[str, set[str]]:
    """Return for each folder those that it depends on, in any way."""
    graph: dict[str, set[str]] = {}
    for module, tree in trees():
        needs = {folder_of(name) for name in imported(tree, modules()) | named_in_strings(tree, modules())}
        graph.setdefault(folder_of(module), set()).update(needs - {folder_of(module)})
    return graph


def cycles(graph: Graph) -> list[list[str]]:
    """Return the nodes that reach themselves, grouped by those that reach each other.

    >>> cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": set()})
    [['a', 'b', 'c']]
    """
    reached = {node: reachable(graph, node) for node in graph}
    groups = {frozenset(other for other in found if node in reached.get(other, ())) for node, found in reached.items()}
    return sorted(sorted(group) for group in groups if group)


def reachable(graph: Graph, start: str) -> set[str]:
    """Return the nodes at the end of one edge or more.

    >>> sorted(reachable({"a": {"b"}, "b": {"c"}, "c": set()}, "a"))
    ['b', 'c']
    """
    found: set[str] = set()
    waiting = [*graph.get(start, ())]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += graph.get(node, ())
    return found


def drawing(graph: Graph) -> str:
    """Draw a graph without cycles, a line a node, those that nobody needs first; an edge that others imply is left out.

    >>> print(drawing({"cli": {"train", "world"}, "train": {"world"}, "world": set()}))
    cli    -> train
    train  -> world
    world
    """
    below = {node: reachable(graph, node) for node in graph}
    width = max(map(len, graph))
    lines = []
    for node in sorted(graph, key=lambda name: (-len(below[name]), name)):
        direct = sorted(graph[node] - {far for near in graph[node] for far in below[near]})
        lines.append(f"{node:{width}}  -> {', '.join(direct)}" if direct else node)
    return "\n".join(lines)


def renewed(page: str) -> str:
    """Put the drawing between the two marks of a page."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin and end, f"the page has lost its marks {BEGIN} and {END}"
    return f"{before}{BEGIN}\n```\n{drawing(folders())}\n```\n{END}{after}"


if __name__ == "__main__":
    contributing = ROOT / "CONTRIBUTING.md"
    contributing.write_text(renewed(contributing.read_text(encoding="utf-8")), encoding="utf-8")
    print(drawing(folders()))
