"""Progress on a terminal and elsewhere: what is shown, when, and by whom."""

from __future__ import annotations

import sys
import time

import pytest

from rueda.terminal.bar import OnTerminal
from rueda.terminal.delayed import DelayedProgress
from rueda.terminal.phases import PhasesProgress
from rueda.terminal.points import PointsProgress

Capture = pytest.CaptureFixture[str]


@pytest.fixture(params=[True, False], ids=["terminal", "pipe"])
def terminal(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> bool:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: request.param)
    monkeypatch.setenv("TERM", "xterm" if request.param else "dumb")
    return bool(request.param)


def test_a_line_is_said_with_or_without_a_bar(terminal: bool, capsys: Capture) -> None:
    with OnTerminal(speak=True) as show:
        show.say("[a line]")
    shown = capsys.readouterr().err
    assert "[a line]" in shown
    assert terminal or shown == "[a line]\n"
    with OnTerminal(speak=False) as show:
        show.say("nothing")
        assert not show.due
    assert capsys.readouterr().err == ""


def test_phases_and_points(terminal: bool, capsys: Capture) -> None:
    with PhasesProgress(speak=True, phases=2) as phases:
        phases.phase("first")
        phases.tell("a detail")
    with PointsProgress(speak=True, description="grid", total=9, done=3) as points:
        points.show(6)
    shown = capsys.readouterr().err
    lines = ["1/2 first", "grid: 3 of 9 points are there already", "grid: 6 of 9 points, about 0 s left"]
    assert "grid" in shown if terminal else shown.splitlines() == lines


def test_short_work_shows_nothing(terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with DelayedProgress(speak=True) as progress:
        for second, done in ((0.5, 1), (1.9, 2), (2.5, 3), (3.0, 4), (5.0, 5_000)):
            now = 100.0 + second
            progress.show("reading", done, None if done == 3 else 9_999)
    shown = capsys.readouterr().err
    assert "reading" in shown if terminal else shown.splitlines() == ["reading: 3", "reading: 5,000 of 9,999"]
    with DelayedProgress(speak=True) as progress:
        progress.show("reading", 1, 2)
    assert capsys.readouterr().err == ""
