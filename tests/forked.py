"""Scripts in processes of their own that a server with torch forks, since a start with torch costs more than a second.

For tests of what happens between processes: one is killed, one never comes, a world is opened a second time. What
depends on the start itself (the command line, the order of imports, variables that torch reads when it is loaded) needs
a real start.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import PRELOADED

SECONDS = 300.0


class Forked:
    """A script that runs in a forked process; its two streams go to the files ``.out`` and ``.err``.

    Args:
        code: the script.
        words: its arguments, ``sys.argv[1:]``.
        variables: the whole environment of the process.
        file: the name of both files, without their endings.
    """

    def __init__(self, code: str, words: tuple[str, ...], variables: Mapping[str, str], file: Path) -> None:
        context: Any = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self._files = [file.with_suffix(".out"), file.with_suffix(".err")]
        arguments = (code, words, dict(variables), *map(str, self._files))
        self._process = context.Process(target=_run, args=arguments, daemon=True)
        self._process.start()

    def wait(self) -> tuple[int, str, str]:
        """Wait for the end; returns the exit status, negative for a signal, and what it wrote to both streams."""
        self._process.join(SECONDS)
        output, errors = (file.read_text() if file.exists() else "" for file in self._files)
        assert self._process.exitcode is not None, f"no end in {SECONDS:g} s: {output}{errors}"
        return self._process.exitcode, output, errors

    def has_ended(self, seconds: float) -> bool:
        """Wait for the end for some seconds; returns whether it has come."""
        self._process.join(seconds)
        return self._process.exitcode is not None

    def kill(self) -> None:
        """End it at once, if it still runs."""
        self._process.kill()
        self._process.join()


@contextlib.contextmanager
def forked(code: str, ranks: Sequence[Mapping[str, str]], *words: str) -> Iterator[list[Forked]]:
    """Run a script once for each environment, all at the same time; what still runs at the end is killed.

    Warnings are errors there, as in the tests.
    """
    started: list[Forked] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for number, variables in enumerate(ranks):
                started.append(Forked(code, words, variables, Path(folder, f"rank-{number}")))
            yield started
        finally:
            for one in started:
                one.kill()


def _run(code: str, words: tuple[str, ...], variables: dict[str, str], output: str, errors: str) -> None:
    gc.freeze()  # imported modules are never freed, so collections need not visit them
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # it may have children
    os.environ.clear()
    os.environ.update(variables)
    for number, file in ((1, output), (2, errors)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    sys.stdout = open(1, "w", closefd=False, buffering=1)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False, buffering=1)  # noqa: SIM115
    sys.argv = ["-c", *words]
    warnings.simplefilter("error")
    exec(compile(code, "<script>", "exec"), {"__name__": "__main__"})
