"""The help of every command on a terminal of 80 columns, and what the commands' names and options are completed to."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from commandline import rueda
from rueda.cli.app import app
from rueda.files.patient_output import prepare_standard_streams


def _commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from _commands(child, (*path, name))


COMMANDS = {" ".join(path) or "rueda": (path, command) for path, command in _commands(typer.main.get_command(app))}


@pytest.mark.parametrize(("path", "command"), COMMANDS.values(), ids=COMMANDS)
@pytest.mark.parametrize("columns", ["80", "120"])
def test_no_help_is_cut_or_broken_within_a_word(
    path: tuple[str, ...],
    command: Any,
    columns: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert rueda(*path, "--help") == 0
    lines = capsys.readouterr().out.splitlines()
    for line in lines:
        if not line.startswith("Usage: "):
            assert not line.endswith(("...", "…")), line
        assert not line.endswith("-"), line
        assert len(line) <= int(columns), line
    example = "" if path == ("horovodrun",) else (command.epilog or "").partition("Example: ")[2]
    assert not example or any(line.endswith(example) for line in lines), "the example takes more than a line"


@pytest.mark.parametrize("command", [command for path, command in COMMANDS.values() if path])
def test_short_descriptions_are_whole_where_shells_show_them(command: Any) -> None:
    assert not command.get_short_help_str().endswith("...")  # 45 characters


def test_completion_in_a_home_that_is_read_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), "/home/me/.bashrc")

    monkeypatch.setattr("typer.completion.install", refuse)
    assert rueda("--install-completion", "bash") == 1
    assert capsys.readouterr().err == "rueda: cannot open /home/me/.bashrc: Read-only file system\n"


class FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_and_a_closed_output(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdout", FullDisk())
    assert rueda("recipe", "list") == rueda("--help") == 1
    assert capsys.readouterr().err == 2 * "rueda: cannot write the output: No space left on device\n"
    monkeypatch.setattr("sys.stdout", None)
    assert rueda("--help") == 0


def test_a_closed_standard_error_can_be_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of ``rueda train ... 2>&-``, whose progress ended the training with status 1."""
    monkeypatch.setattr("sys.stderr", None)
    prepare_standard_streams()
    assert sys.stderr is not None and sys.stderr.fileno() == 2
