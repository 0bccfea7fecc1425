"""Docstrings are written to be read in the source; these steps make reStructuredText of them.

- An indented paragraph is a formula or an example: it becomes a literal block.
- ``|w|`` is a norm, not a substitution.
- A reference to a module, class or function that exists but has no page becomes plain text. One to a name that does not
  exist stays a warning, and so an error of the build.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

_SECTION = re.compile(r"(Args|Arguments|Attributes|Example|Examples|Note|Raises|Returns|Yields):$")
_OWN_BLOCK = re.compile(r"([-*] |\d+\. |\.\. |>>> |:\w|``)|.*::$")
_LITERAL = re.compile(r"(``.+?``|`[^`]+`)")


def setup(app: Sphinx) -> None:
    """Register both steps with Sphinx."""
    app.connect("autodoc-process-docstring", _prepare, priority=400)  # before napoleon, at 500,
    app.connect("autodoc-process-docstring", _prepare_attribute, priority=600)  # and after it
    app.connect("missing-reference", _accept_existing_names)


def _prepare(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = prepared(lines)


def _prepare_attribute(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Undo what napoleon makes of ``the largest norm; None: no limit``, which it takes for a type and a text."""
    match lines:
        case [text, "", kind, *_] if what == "attribute" and kind.startswith(":type:"):
            lines[:] = [f"{kind.removeprefix(':type:').strip()}: {text}"]


def prepared(lines: list[str]) -> list[str]:
    """Turn the lines of a docstring into reStructuredText.

    >>> prepared(["The norm |w| is", "", "    |w|", "", "where", "", "Args:", "    w: the weight |w|."])
    ['The norm \\\\|w\\\\| is', '', '::', '', '    |w|', '', 'where', '', 'Args:', '    w: the weight \\\\|w\\\\|.']
    """
    found: list[str] = []
    opening, literal = "", False  # the last line without indentation; whether this block is shown as it stands
    for index, line in enumerate(lines):
        if not line.strip():
            found.append(line)
            continue
        if not line.startswith(" "):
            opening, literal = line, False
        elif index and not lines[index - 1].strip() and not literal:
            literal = opening.endswith("::")
            if not literal and line.startswith("    ") and not (_SECTION.match(opening) or _OWN_BLOCK.match(opening)):
                found += ["::", ""]
                literal = True
        found.append(line if literal else _escape_bars(line))
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
