"""Progress on a terminal and elsewhere: what is shown, when, and by whom."""

from __future__ import annotations

import io
import re
import time
from contextlib import redirect_stderr

import pytest

from rueda.records import Row
from rueda.terminal.bar import ProgressDisplay
from rueda.terminal.delayed import DelayedProgress
from rueda.terminal.phases import PhasesProgress
from rueda.terminal.points import PointsProgress
from rueda.terminal.training import Progress


class Screen(io.StringIO):
    """Stands for standard error, which is a terminal or a pipe."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal

    def take(self) -> str:
        """Give what was written since the last time."""
        text = self.getvalue()
        self.seek(0)
        self.truncate()
        return text


@pytest.fixture(params=[True, False], ids=["terminal", "pipe"])
def screen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Screen:
    monkeypatch.setenv("TERM", "xterm")
    return Screen(request.param)


def test_a_line_is_said_with_or_without_a_bar(screen: Screen) -> None:
    with redirect_stderr(screen), ProgressDisplay(speak=True) as show:
        show.say("[a line]")
    shown = screen.take()
    assert "[a line]" in shown
    assert (shown == "[a line]\n") != screen.is_terminal
    with redirect_stderr(screen), ProgressDisplay(speak=False) as show:
        show.say("nothing")
        assert not show.due
    assert screen.take() == ""


def test_phases_and_points(screen: Screen) -> None:
    with redirect_stderr(screen):
        with PhasesProgress(speak=True, phases=2) as phases:
            phases.phase("first")
            phases.tell("a detail")
        with PointsProgress(speak=True, description="grid", total=9, done=3) as points:
            points.show(6)
    shown = screen.take()
    if screen.is_terminal:
        assert "a detail" in shown and "grid" in shown and "6/9" in shown
    else:
        lines = ["1/2 first", "grid: 3 of 9 points are already computed", "grid: 6 of 9 points, about 0 s left"]
        assert shown.splitlines() == lines


def test_short_work_shows_nothing(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with redirect_stderr(screen), DelayedProgress(speak=True) as progress:
        for second, done in ((0.5, 1), (1.9, 2), (2.5, 3), (3.0, 4), (5.0, 5_000)):
            now = 100.0 + second
            progress.show("reading", done, None if done == 3 else 9_999)
    shown = screen.take()
    if screen.is_terminal:
        assert "reading" in shown and "50 %" in shown
    else:
        assert shown.splitlines() == ["reading: 3", "reading: 5,000 of 9,999"]
    with redirect_stderr(screen), DelayedProgress(speak=True) as progress:
        progress.show("reading", 1, 2)
    assert screen.take() == ""


EPOCH = Row(
    kind="epoch", epoch=9, step=97, examples=49664, seconds=9.0, train_loss=1.2, train_accuracy=0.571,
    test_loss=2.302585e5, test_accuracy=1.0, images_per_second=123_456.0, rate=0.001, global_batch=512,
)  # fmt: skip


@pytest.mark.parametrize("columns", [80, 120])
def test_a_training_fits_into_80_columns(columns: int, screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    title = "fashion-mnist-wrn on 1,024 rehearsed workers in one process"
    with redirect_stderr(screen), Progress(speak=True, title=title, num_epochs=100) as shown:
        shown.show_step(9, 1_234, 12_345, seconds=3723.4, speed=123_456.0, loss=1.2, value=0.571)
        shown.show_epoch(EPOCH, 36_000.0)
    text = screen.take()
    assert "…" not in text and "None" not in text  # the number of steps is unknown at first
    lines = [line for line in re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)) if line]
    assert max(map(len, lines)) <= columns
    assert title in lines
    assert "  9/100  36000.0 s    123,456      1.2000    57.1 %  2.303e+05   100.0 %" in lines
    if screen.is_terminal:
        assert any("epoch 10/100" in line and "loss 1.2000 accuracy 57.1 % 123,456 images/s" in line for line in lines)
    else:
        assert lines[1] == "  epoch       time   images/s  train loss  accuracy  test loss  accuracy"
        assert lines[2] == " 10/100   3723.4 s    123,456      1.2000    57.1 %  step 1234/12345"


def test_a_stage_of_a_pipeline_that_sees_no_losses_shows_none(screen: Screen) -> None:
    with redirect_stderr(screen), Progress(speak=True, title="stages", num_epochs=2) as shown:
        shown.show_step(0, 1, 10, seconds=1.0, speed=None, loss=None, value=None)
    text = screen.take()
    assert "loss – accuracy – – images/s" in text if screen.is_terminal else " –         –  step 1/10" in text


def test_a_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(True)
    monkeypatch.setenv("TERM", "dumb")
    with redirect_stderr(screen), PhasesProgress(speak=True, phases=1) as phases:
        phases.phase("first")
    assert screen.take() == "1/1 first\n"
