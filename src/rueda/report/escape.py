"""Escape text from files, so that the page shows it literally and never executes it.

A task's name, a recipe, a path or a machine's name may hold anything. It is inserted in three contexts, and each needs
its own escaping: HTML, a ``<script>`` with data, and figures (plotly interprets a few tags in its labels).
"""

from __future__ import annotations

import html
import json
import math
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

LONGEST = 300
"""the most characters of a label in a figure: a recipe of a megabyte must not cover the figure"""

_HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


class Label(str):
    """A label that may contain plotly's tags (``<b>``, ``<br>``, ``<i>``); text from files in it is already escaped."""


def to_html(text: object) -> str:
    """Escape text for HTML elements and quoted attributes.

    >>> to_html('<b title="x">')
    '&lt;b title=&quot;x&quot;&gt;'
    """
    return html.escape(_visible(str(text)))


def to_label(text: str) -> str:
    """Escape text for plotly, which interprets a few tags and entities in labels.

    >>> to_label("<a href='x'>&amp;</a>"), to_label(Label("<b>bold</b>"))
    ("&lt;a href='x'&gt;&amp;amp;&lt;/a&gt;", '<b>bold</b>')
    """
    if isinstance(text, Label):
        return text
    text = _visible(text)
    if len(text) > LONGEST:
        text = text[: LONGEST - 1] + "…"
    return html.escape(text, quote=False)


def lines(*texts: str) -> Label:
    """Join texts into a label with one line for each.

    >>> lines(bold("a < b"), "c")
    '<b>a &lt; b</b><br>c'
    """
    return Label("<br>".join(to_label(text) for text in texts))


def bold(text: str) -> Label:
    """Return a label in bold type."""
    return Label(f"<b>{to_label(text)}</b>")


def to_script(data: Any) -> str:
    r"""Write data as JSON for a ``<script type="application/json">``; every text in it becomes a label.

    JSON alone would end the element at ``</script>``, and open a comment at ``<!--``. Numbers that are not finite,
    which JSON lacks, become null.

    >>> to_script({"name": "</script>", "rate": float("nan")})
    '{"name":"\\u0026lt;/script\\u0026gt;","rate":null}'
    """
    text = json.dumps(_labels(data), allow_nan=False, separators=(",", ":"))  # ASCII: U+2028 is escaped, too
    return re.sub("[<>&]", lambda found: _UNSAFE[found[0]], text)


def _labels(data: Any) -> Any:
    if isinstance(data, str):
        return to_label(data)
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {to_label(str(key)): _labels(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_labels(value) for value in data]
    return data


def _visible(text: str) -> str:
    """Replace invisible characters: controls, lone surrogates, and marks that change the writing direction."""
    text = re.sub(r"[\n\t\r]", " ", text)
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(letter) in _HIDDEN else letter for letter in text
    )
