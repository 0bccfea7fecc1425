"""Pages as sessions: the commands of a page are run in their order, and what they print stands on the page.

A block after ``<!-- file: NAME -->`` is a file of the session. In a ``console`` block a line ``$ command`` is run, and
the lines below it are what it printed, in 80 columns. ``python tests/console.py PAGE`` renews these lines.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from commandline import rueda

_BLOCK = re.compile(
    r"^(?:<!-- file: (?P<file>\S+) -->\n)?```(?P<language>\S*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)
_NUMBER = re.compile(r"[-+−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block of a page: its language, its text and, if the page says so, the file that it is."""

    language: str
    text: str
    line: int
    file: str | None = None

    def commands(self) -> list[tuple[str, str]]:
        """Return each command of a console block with what it printed."""
        parts = re.split(r"^\$ (.*)\n", self.text, flags=re.MULTILINE)
        return [*zip(parts[1::2], parts[2::2], strict=True)]


def blocks(page: str) -> list[Block]:
    """List the fenced blocks of a page."""
    found = _BLOCK.finditer(page)
    return [
        Block(
            language=item["language"], text=item["text"], file=item["file"], line=page.count("\n", 0, item.start()) + 1
        )
        for item in found
    ]


def run(command: str) -> str:
    """Run a command in the current folder; `rueda` runs in this process, since each start with torch takes seconds."""
    words = command.partition("  #")[0].split()
    with tempfile.TemporaryFile("w+") as output, _writing_to(output):
        if words[0] == "rueda":
            status = rueda(*words[1:])
        else:
            words[0] = sys.executable if words[0] == "python" else words[0]
            status = subprocess.run(words).returncode
        sys.stdout.flush()
        sys.stderr.flush()
        output.seek(0)
        text = output.read()
    assert status == 0, f"{command}: status {status}\n{text}"
    return "".join(line.rstrip() + "\n" for line in text.splitlines())


@contextmanager
def _writing_to(file: TextIO) -> Iterator[None]:
    """Send standard output and error, of this process and its children, to one file."""
    streams, saved = (sys.stdout, sys.stderr), [os.dup(number) for number in (1, 2)]
    for number in (1, 2):
        os.dup2(file.fileno(), number)
    sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams
        for number, former in zip((1, 2), saved, strict=True):
            os.dup2(former, number)
            os.close(former)


def shape(text: str) -> list[str]:
    """Reduce an output to what every machine prints: its words. Numbers, widths and the order of lines may differ.

    The launcher's warning that several workers share one core is left out, too.

    >>> shape("step 12.5 ms  ────") == shape("step  9 ms ──")
    True
    """
    words = re.sub(r"[─━-]{2,}", "─", _NUMBER.sub("0", text))
    return sorted(" ".join(line.split()) for line in words.splitlines() if "which they share" not in line)


def renew(page: str) -> str:
    """Run a page from its beginning to its end in the current folder; returns it with what its commands print."""

    def renewed(found: re.Match[str]) -> str:
        if found["file"]:
            Path(found["file"]).write_text(found["text"])
        if found["language"] != "console":
            return found[0]
        block = Block(language="console", text=found["text"], line=0)
        text = "".join(f"$ {command}\n{run(command)}" for command, _ in block.commands())
        return f"```console\n{text}```"

    return _BLOCK.sub(renewed, page)


@contextmanager
def session_folder() -> Iterator[None]:
    """Go to an empty folder, with the terminal of the pages."""
    before = Path.cwd(), dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ.update(COLUMNS="80", OMP_NUM_THREADS="1", NO_COLOR="1")
        try:
            yield
        finally:
            os.chdir(before[0])
            os.environ.clear()
            os.environ.update(before[1])


if __name__ == "__main__":
    for name in sys.argv[1:]:
        target = Path(name).resolve()
        with session_folder():
            text = renew(target.read_text())
        target.write_text(text)
