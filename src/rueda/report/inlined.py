"""What a page carries inside it: our scripts and styles, plotly compressed, and the hashes that its policy names."""

from __future__ import annotations

import base64
import gzip
import hashlib
from functools import cache
from importlib.resources import files


def asset(name: str) -> str:
    """Return one of the report's scripts or style sheets."""
    return (files("rueda.report") / "assets" / name).read_text(encoding="utf-8")


@cache
def packed_plotly() -> tuple[str, str]:
    """Return the hash of plotly's script and the script itself, compressed."""
    from plotly.offline import get_plotlyjs  # not at import: the command answers --help without it

    script = str(get_plotlyjs())
    return script_hash(script), packed_text(script)


def packed_text(text: str) -> str:
    """Compress a text for a page, whose script unpacks it."""
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def script_hash(script: str) -> str:
    """Return the hash by which a Content-Security-Policy allows a script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
