"""What is shown: a bar and lines on a terminal, plain lines elsewhere, nothing when silent."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rueda.study import study_techniques
from tinytask import tiny_task


@pytest.mark.parametrize("terminal", [True, False])
def test_every_run_has_its_line(
    terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    monkeypatch.setenv("TERM", "xterm" if terminal else "dumb")
    study_techniques(tiny_task(), 4, rows=["naive", "lamb"], epochs=1, folder=tmp_path)
    shown = capsys.readouterr().err
    assert "1/2  naive, seed 0: test accuracy" in shown and "2/2  lamb, seed 0: test accuracy" in shown
    assert ("epochs" in shown) is terminal  # the bar of the running row
    study_techniques(tiny_task(), 4, rows=["naive", "lamb"], epochs=1, folder=tmp_path)
    again = capsys.readouterr().err
    assert terminal or again == "2 of 2 runs are finished already\n"
    study_techniques(tiny_task(), 4, rows=["naive"], epochs=1, folder=tmp_path, progress=False)
    assert capsys.readouterr().err == ""
