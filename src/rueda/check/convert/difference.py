"""The unified diff of two versions of a file, byte by byte, as ``patch -p0`` and ``git apply -p0`` take it."""

from __future__ import annotations

import difflib
from collections.abc import Iterator


def unified_diff(before: bytes, after: bytes, name: str) -> bytes:
    r"""Return the unified diff; a line ends with a newline only, so that CRLF, form feeds and encodings are kept.

    >>> print(unified_diff(b"a\nb", b"a\nb\nc\n", "train.py").decode(), end="")
    --- train.py
    +++ train.py
    @@ -1,2 +1,3 @@
     a
    -b
    \ No newline at end of file
    +b
    +c
    """
    label = name + "\t" if " " in name else name  # a name with a space ends with a tab
    lines = difflib.unified_diff(_lines(before), _lines(after), label, label, lineterm="\n")
    return "".join(_ended(lines)).encode("latin-1")


def _lines(content: bytes) -> list[str]:
    """Return the lines with their ends; every byte is one character."""
    *full, rest = content.decode("latin-1").split("\n")
    return [f"{line}\n" for line in full] + ([rest] if rest else [])


def _ended(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
