"""Directives whose text is read from the code: recipe fields, named recipes, record formats, the Python interface.

==================  ====================================================================================
``recipe-fields``   every field of a recipe with its default and meaning, in the groups of the source
``named-recipes``   the recipes that ``rueda recipe list`` names
``format-number``   the number of the format that the records describe
``record-formats``  every JSON record with its fields, as its dataclass declares them
``metrics-rows``    the lines of ``metrics.jsonl``
``package``         the docstring of one package
``python-api``      the public names of one package, with the docstrings of the modules that define them
==================  ====================================================================================

A directive that writes headings must not write text before the first: MyST adds the sections to the page at once, and
the text after the last of them.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import types
import typing
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from itertools import pairwise
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

PACKAGES = (
    "rueda", "rueda.world", "rueda.data", "rueda.tasks", "rueda.optim", "rueda.nn", "rueda.keras",
    "rueda.integrations", "rueda.train", "rueda.measure", "rueda.plan", "rueda.study", "rueda.examine", "rueda.hvd",
)  # fmt: skip
"""in this order: a name that several packages export is documented under the first"""


def setup(app: Sphinx) -> None:
    """Register the directives with Sphinx."""
    for name, write in (
        ("recipe-fields", recipe_fields),
        ("named-recipes", named_recipes),
        ("format-number", format_number),
        ("record-formats", record_formats),
        ("metrics-rows", metrics_rows),
    ):
        app.add_directive(name, _markdown_directive(write))
    app.add_directive("package", _Package)
    app.add_directive("python-api", _PythonInterface)


def _markdown_directive(write: Any) -> type[SphinxDirective]:
    class FromCode(SphinxDirective):
        """Insert Markdown that a function writes."""

        def run(self) -> list[nodes.Node]:
            return self.parse_text_to_nodes(write(), allow_section_headings=True)

    return FromCode


def recipe_fields() -> str:
    """Write a table for each group of recipe fields; the groups are the comments between the fields in the source."""
    from rueda.records.recipe import recipe as home

    described = {name: (default, meaning) for name, default, meaning in home.describe_fields()}
    lines: list[str] = []
    for title, names in _groups(inspect.getsource(home.Recipe), described):
        lines += ["", f"## {title}", "", "| field = default | meaning |", "|---|---|"]
        for name in names:
            default, meaning = described[name]
            lines.append(f"| `{name} = {default}` | {_cell(meaning)} |")
    return "\n".join(lines)


def _groups(source: str, names: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Split the fields of a class at the comment lines of its body.

    >>> [*_groups("class A:\\n    # The workers.\\n    n: int = 1\\n    # The rate.\\n    lr: float = 2", ["n", "lr"])]
    [('The workers', ['n']), ('The rate', ['lr'])]
    """
    title, found = "", list[str]()
    for line in source.splitlines():
        comment, field = re.match(r"    # (.+)", line), re.match(r"    (\w+):", line)
        if comment:
            if found:
                yield title, found
            title, found = comment[1].rstrip("."), []
        elif field and field[1] in names:
            found.append(field[1])
    yield title, found


def named_recipes() -> str:
    """Write a table of the named recipes."""
    from rueda.records.recipe.named import NAMED

    rows = [f"| `{name}` | {_cell(named.summary)} |" for name, named in NAMED.items()]
    return "\n".join(["| name | what it changes |", "|---|---|", *rows])


def format_number() -> str:
    """Say which number the format of the records has."""
    from rueda.records.json_record import FORMAT

    return f"The format described here is number {FORMAT}; each file names it in its field `format`."


def record_formats() -> str:
    """Write a section for each JSON record, the records that it holds below it."""
    import pkgutil

    import rueda.records
    from rueda.records.json_record import JsonRecord

    for module in pkgutil.iter_modules(rueda.records.__path__, "rueda.records."):
        importlib.import_module(module.name)
    lines: list[str] = []
    for record in sorted(JsonRecord.__subclasses__(), key=lambda kind: kind.FILE):
        lines += ["", f"## {record.FILE}", "", f"{_sentence(record)} Written by `{record.COMMAND}`.", ""]
        lines += _table_of(record)
        for inner in _held_by(record):
            lines += ["", f"**{inner.__name__}**: {_sentence(inner)}", "", *_table_of(inner)]
    return "\n".join(lines)


def metrics_rows() -> str:
    """Write the table of one line of ``metrics.jsonl``, and that of a measurement of the noise scale."""
    from rueda.records.run import NoiseRow, Row

    lines: list[str] = []
    for record in (Row, NoiseRow):
        lines += ["", f"**{record.__name__}**: {_sentence(record)}", "", *_table_of(record)]
    return "\n".join(lines)


def _held_by(record: type) -> list[Any]:
    """Return the dataclasses that the fields of a record hold, however deep, each once."""
    found: list[Any] = []
    waiting = [*typing.get_type_hints(record).values()]
    while waiting:
        hint = waiting.pop(0)
        if is_dataclass(hint) and hint not in found:
            found.append(hint)
            waiting += typing.get_type_hints(hint).values()
        waiting += typing.get_args(hint)
    return found


def _table_of(record: Any) -> list[str]:
    """Write the table of a record's fields; without a meaning of any field there is no column for it."""
    hints, meanings = typing.get_type_hints(record), _meanings(record)
    rows = [
        [f"`{item.name}`", _type_words(hints[item.name]), _cell(meanings.get(item.name, ""))] for item in fields(record)
    ]
    head = ["field", "type", "meaning"] if any(row[2] for row in rows) else ["field", "type"]
    return [f"| {' | '.join(row[: len(head)])} |" for row in (head, ["---"] * len(head), *rows)]


def _meanings(record: type) -> dict[str, str]:
    """Return the strings that stand below the fields of a class in its source."""
    tree = ast.parse(inspect.cleandoc(inspect.getsource(record)))
    body = next(node for node in tree.body if isinstance(node, ast.ClassDef)).body
    return {
        ast.unparse(item.target): ast.literal_eval(text.value)
        for item, text in pairwise(body)
        if isinstance(item, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }


def _type_words(hint: Any) -> str:
    """Say a type as one would in a file format.

    >>> _type_words(tuple[float, ...]), _type_words(int | None), _type_words(dict[str, int])
    ('list of number', 'whole number or null', 'table')
    """
    words = {int: "whole number", float: "number", str: "text", bool: "true or false", type(None): "null"}
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint in words:
        return words[hint]
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type_words(part) for part in inner)
    if origin is tuple:
        kinds = dict.fromkeys(_type_words(part) for part in inner if part is not Ellipsis)
        return f"list of {' and '.join(kinds)}"
    if origin is not None or hint is Any:
        return "table" if origin is not None else "anything"
    return str(hint.__name__)


def _sentence(record: type) -> str:
    """Return the first paragraph of a docstring in one line."""
    return _cell(inspect.cleandoc(record.__doc__ or "").partition("\n\n")[0])


def _cell(text: str) -> str:
    """Make text of a docstring fit into a cell of a Markdown table.

    >>> _cell("of :class:`NoiseScale` |G|\\n and more")
    'of `NoiseScale` \\\\|G\\\\| and more'
    """
    return " ".join(re.sub(r":\w+:(`)", r"\1", text).replace("|", "\\|").replace("<", "&lt;").split())


class _Package(SphinxDirective):
    """Insert the docstring of a package."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes(_autodoc("module", self.arguments[0], "no-members"))


class _PythonInterface(SphinxDirective):
    """Document the public names of a package; the docstring of each defining module stands before its names."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes(python_interface(self.arguments[0]), allow_section_headings=True)


def python_interface(package: str) -> str:
    """Write the autodoc directives for a package: a section for each module that defines some of its names."""
    blocks: list[str] = []
    public = _public_names()
    earlier = {home for other in PACKAGES[: PACKAGES.index(package)] for home in public[other]}
    for home, names in public[package].items():
        blocks.append(f"## {', '.join(names)}")
        if home not in earlier and home not in (*PACKAGES, "rueda.errors"):  # their docstrings stand elsewhere
            same_name = home in (f"{package}.{name}" for name in names)
            blocks.append(_autodoc("module", home, "no-members", *["no-index"] * same_name))
        for name in names:
            is_class = inspect.isclass(getattr(importlib.import_module(package), name))
            elsewhere = ["no-index"] * (home == "rueda.errors" != package)  # links go to the page of all errors
            kind = "class" if is_class else "function"
            blocks.append(_autodoc(kind, f"{package}.{name}", *["members"] * is_class, *elsewhere))
    return "\n\n".join(blocks)


def _autodoc(kind: str, name: str, *options: str) -> str:
    lines = [f".. auto{kind}:: {name}", *(f"   :{option}:" for option in options)]
    return "\n".join(["````{eval-rst}", *lines, "````"])


def _public_names() -> dict[str, dict[str, list[str]]]:
    """Return for each package its public names by the module that defines them; every object is listed once."""
    seen: list[Any] = []
    found: dict[str, dict[str, list[str]]] = {}
    for package in PACKAGES:
        module = importlib.import_module(package)
        found[package] = {}
        for name in module.__all__:
            value = getattr(module, name)
            is_alias = typing.get_origin(value) is not None  # of a type: it has neither arguments nor a docstring
            if callable(value) and not is_alias and not any(value is other for other in seen):
                seen.append(value)
                found[package].setdefault(value.__module__, []).append(name)
    return found
