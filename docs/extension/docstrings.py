"""Docstrings are written to be read in the source; these steps make reStructuredText of them.

- An indented paragraph is a formula or an example: it becomes a literal block.
- ``|w|`` is a norm, not a substitution, except in a doctest, which is shown as it stands.
- A default value that Python prints as ``<function accuracy at 0x7f...>`` is shown by its name, and a type without the
  rule by which a record checks it: Sphinx cannot read such a signature, and shows it as one long line.
- A reference to a module, class or function that exists but has no page becomes plain text. One to a name that does not
  exist stays a warning, and so an error of the build.
"""

from __future__ import annotations

import pkgutil
import re
from importlib import import_module
from typing import Annotated, Any, get_origin

from docutils import nodes
from sphinx.application import Sphinx

_SECTION = re.compile(r"(Args|Arguments|Attributes|Example|Examples|Note|Raises|Returns|Yields):$")
_OWN_BLOCK = re.compile(r"([-*] |\d+\. |\.\. |>>> |:\w|``)|.*::$")
_LITERAL = re.compile(r"(``.+?``|`[^`]+`)")
_UNREADABLE = (
    (re.compile(r"<function (?:\w+\.)*?(\w+)(?: at 0x\w+)?>"), r"\1"),
    (re.compile(r"<factory>"), "..."),
    (re.compile(r"~typing\.~Parameters"), "Any"),
    (re.compile(r"\[~Parameters\]"), "..."),
)
"""what Python prints in a signature, and what is shown"""


def setup(app: Sphinx) -> None:
    """Register the steps with Sphinx."""
    app.connect("builder-inited", lambda _: _remove_rules())
    app.connect("autodoc-process-signature", _make_readable)
    app.connect("autodoc-process-docstring", _prepare, priority=400)  # before napoleon, at 500,
    app.connect("autodoc-process-docstring", _prepare_attribute, priority=600)  # and after it
    app.connect("doctree-read", _draw_dashes)
    app.connect("missing-reference", _accept_existing_names)


def _prepare(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = prepared(lines)


def _prepare_attribute(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Undo what napoleon makes of ``the largest norm; None: no limit``, which it takes for a type and a text."""
    kinds = [index for index, line in enumerate(lines) if line.startswith(":type:")]
    if what in ("attribute", "property", "data") and kinds:
        kind = lines[kinds[0]].removeprefix(":type:").strip()
        lines[:] = [f"{kind}: {lines[0]}", *lines[1 : kinds[0]]]


def _remove_rules() -> None:
    """Replace the aliases of ``Annotated[int, Rule(...)]`` by ``int`` in the modules of the records."""
    import rueda.records

    for found in pkgutil.iter_modules(rueda.records.__path__, "rueda.records."):
        module = import_module(found.name)
        for name, value in list(vars(module).items()):
            if get_origin(value) is Annotated:
                setattr(module, name, value.__origin__)


def _make_readable(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    return readable(signature) if signature else signature, returned


def readable(signature: str) -> str:
    """Replace what only Python's ``repr`` can say in a signature.

    >>> readable("(loss: Loss = <function cross_entropy at 0x7f01>, seeds: list = <factory>)")
    '(loss: Loss = cross_entropy, seeds: list = ...)'
    """
    for pattern, shown in _UNREADABLE:
        signature = pattern.sub(shown, signature)
    return signature


def _draw_dashes(app: Sphinx, page: nodes.document) -> None:
    """Put a dash between an argument and its meaning, where Sphinx writes two hyphens."""
    for text in list(page.findall(nodes.Text)):
        if text == " -- ":
            text.parent.replace(text, nodes.Text(" – "))


def prepared(lines: list[str]) -> list[str]:
    """Turn the lines of a docstring into reStructuredText.

    >>> prepared(["The norm |w| is", "", "    |w|", "", "where", "", "Args:", "    w: the weight |w|."])
    ['The norm \\\\|w\\\\| is', '', '::', '', '    |w|', '', 'where', '', 'Args:', '    w: the weight \\\\|w\\\\|.']
    >>> prepared([">>> norm  # |w|", "5", "", "|w|"])
    ['>>> norm  # |w|', '5', '', '\\\\|w\\\\|']
    """
    found: list[str] = []
    opening, literal = "", False  # the last line without indentation; whether this block is shown as it stands
    doctest = False  # from >>> to the next empty line
    for index, line in enumerate(lines):
        if not line.strip():
            found.append(line)
            doctest = False
            continue
        doctest = doctest or line.lstrip().startswith(">>> ")
        if not line.startswith(" "):
            opening, literal = line, False
        elif index and not lines[index - 1].strip() and not literal:
            literal = opening.endswith("::")
            if not literal and line.startswith("    ") and not (_SECTION.match(opening) or _OWN_BLOCK.match(opening)):
                found += ["::", ""]
                literal = True
        found.append(line if literal or doctest else _escape_bars(line))
    return found


def _escape_bars(line: str) -> str:
    parts = _LITERAL.split(line)
    return "".join(part if index % 2 else part.replace("|", "\\|") for index, part in enumerate(parts))


def _accept_existing_names(app: Sphinx, env: Any, node: Any, content: nodes.TextElement) -> nodes.Node | None:
    target = node.get("reftarget", "")
    return content if node.get("refdomain") == "py" and target.startswith("rueda") and _exists(target) else None


def _exists(name: str) -> bool:
    """Tell whether a dotted name leads to a module, or to an attribute of one.

    >>> _exists("rueda.train.loop"), _exists("rueda.Recipe.change"), _exists("rueda.train.nothing")
    (True, True, False)
    """
    module, _, last = name.rpartition(".")
    try:
        import_module(name)
    except ImportError:
        if not module:
            return False
        try:
            return hasattr(import_module(module), last)
        except ImportError:
            outer, _, owner = module.rpartition(".")
            return bool(outer) and _exists(module) and hasattr(getattr(import_module(outer), owner), last)
    return True
