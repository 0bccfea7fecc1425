"""Links: those to folders of the repository become text, and those of the built site are all followed.

GitHub shows a folder where the site has no page. After the build every ``href`` and ``src`` of every page is looked up
on disk, fragments included; nothing may be loaded from another host, since the site is read from disk, offline.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from sphinx.application import Sphinx
from sphinx.util.logging import getLogger

_log = getLogger(__name__)

_LINK = re.compile(r"\[([^\]]+)\]\(((?!\w+:)[^)#\s]+)\)")
_ATTRIBUTE = re.compile(r"<(\w+)\b[^>]*?\s(href|src|srcset)=\"([^\"]*)\"")
_IDENTIFIER = re.compile(r"\s(?:id|name)=\"([^\"]*)\"")


def setup(app: Sphinx) -> None:
    """Register both steps with Sphinx."""
    app.connect("source-read", _replace_folder_links)
    app.connect("build-finished", _check_site)


def _replace_folder_links(app: Sphinx, page: str, source: list[str]) -> None:
    folder = Path(app.srcdir, page).parent

    def replace(match: re.Match[str]) -> str:
        text, target = match.groups()
        if not (folder / target).is_dir():
            return match[0]
        if (folder / target / "README.md").is_file() and (folder / target).is_relative_to(app.srcdir):
            return f"[{text}]({target}/README.md)"
        path = (folder / target).resolve().relative_to(Path(app.srcdir).parent)
        return f"`{path}`" if text in (str(path), path.name) else f"{text} (`{path}`)"

    source[0] = _LINK.sub(replace, source[0])


def _check_site(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.name == "html":
        for problem in site_problems(Path(app.outdir)):
            _log.warning(problem)


def site_problems(site: Path) -> list[str]:
    """List the links of a built site that lead nowhere, and what its pages would load from another host."""
    problems = []
    for page in sorted(site.rglob("*.html")):
        for tag, attribute, value in _ATTRIBUTE.findall(page.read_text(encoding="utf-8")):
            problem = _problem(page, tag, attribute, value)
            if problem:
                problems.append(f"{page.relative_to(site)}: {problem}")
    return problems


def _problem(page: Path, tag: str, attribute: str, value: str) -> str | None:
    parts = urlsplit(value)
    if parts.scheme == "data" or (tag == "a" and parts.scheme in ("http", "https", "mailto")):
        return None
    if parts.scheme or parts.netloc:
        return f"<{tag} {attribute}> loads {value} from elsewhere"
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if target.is_dir():
        target /= "index.html"
    if not target.is_file():
        return f"links to {value}, which does not exist"
    if parts.fragment and target.suffix == ".html" and unquote(parts.fragment) not in _identifiers(target):
        return f"links to {value}, which has no such place"
    return None


@cache
def _identifiers(page: Path) -> set[Any]:
    return set(_IDENTIFIER.findall(page.read_text(encoding="utf-8")))
