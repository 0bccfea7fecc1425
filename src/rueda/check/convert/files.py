"""Scripts in files: read, converted, shown as a diff, and written again."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from rueda.check.convert.conversion import Conversion, convert
from rueda.check.convert.difference import unified_diff
from rueda.errors import ScaleError, read_failure
from rueda.files.atomic import write_atomically

_LARGEST_BYTES = 10_000_000
TO_START = {"ddp": "torchrun --nproc-per-node 2", "rueda": "rueda run -np 2", "horovod": "rueda run -np 2"}


def convert_file(script: Path, *, to: str) -> Conversion:
    """Convert the script in a file; see :func:`.convert`."""
    try:
        with open(script, "rb") as stream:
            content = stream.read(_LARGEST_BYTES + 1)
    except OSError as error:
        raise ScaleError(str(script), expected="a Python script", got=read_failure(error), do="name another") from None
    if len(content) > _LARGEST_BYTES:
        got = f"more than {_LARGEST_BYTES // 1_000_000} MB"
        raise ScaleError(str(script), expected="a Python script", got=got, do="name another")
    return convert(content, to=to, name=str(script))


def diff_of(script: Path, conversion: Conversion) -> bytes:
    """Return a conversion as a unified diff."""
    return unified_diff(conversion.before, conversion.after, str(script))


def write_conversion(script: Path, conversion: Conversion, *, to: str) -> str:
    """Write the converted script into its file, atomically and with the file's rights; return a line that says so."""
    mode = stat.S_IMODE(os.stat(script).st_mode)
    write_atomically(script, conversion.after)
    os.chmod(script, mode)
    return f"{script} was converted; start it with: {TO_START[to]} {script}"
