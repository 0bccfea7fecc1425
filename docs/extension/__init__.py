"""What the site needs beyond Markdown: pages made from the code, drawings, and a check that the built site is whole."""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx

from extension import docstrings, drawings, from_code, lab_pages, links


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives and the check with Sphinx."""
    docstrings.setup(app)
    from_code.setup(app)
    drawings.setup(app)
    lab_pages.setup(app)
    links.setup(app)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
