"""Reading of text files that a user names: with a limit, since ``/dev/zero`` has no end."""

from __future__ import annotations

import errno
from pathlib import Path

LARGEST_BYTES = 100_000_000


def read_text(file: Path | str, *, encoding: str = "utf-8") -> str:
    """Read a text file of at most 100 MB, or a pipe.

    Raises:
        OSError: the file cannot be read, or is larger.
        UnicodeDecodeError: it is not text of this encoding.
    """
    with open(file, "rb") as stream:
        content = stream.read(LARGEST_BYTES + 1)
    if len(content) > LARGEST_BYTES:
        raise OSError(errno.EFBIG, f"more than {LARGEST_BYTES // 1_000_000} MB", str(file))
    return content.decode(encoding).replace("\r\n", "\n").replace("\r", "\n")
