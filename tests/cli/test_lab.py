"""``rueda lab``: the list, the export, and what it says without marimo."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from commandline import rueda
from rueda.labs import opening
from rueda.labs.catalogue import lab
from rueda.labs.progress import note


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUEDA_STATE", str(tmp_path / "state"))


def test_the_list_shows_progress(capsys: pytest.CaptureFixture[str]) -> None:
    note("1.days", right=True)
    note("1.wander", right=False)
    assert rueda("lab") == 0
    printed = capsys.readouterr().out
    assert "Gradient descent" in printed and "1 of 12" in printed and "rueda lab 1" in printed


def test_without_marimo(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(opening, "find_spec", lambda name: None)
    for words in (["1"], ["1", "--export", str(tmp_path / "x.html")], ["--export", str(tmp_path)]):
        assert rueda("lab", *words) == 2
        error = capsys.readouterr().err
        assert error.strip() == "rueda: marimo is needed but not installed: run `pip install 'rueda[labs]'`"


def test_mistakes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("marimo")
    for words, expected in (
        (["9"], "lab: expected a number from 1 to 4, got 9"),
        (["one"], "expected a whole number, got 'one'"),
        (["1", "--export", str(tmp_path)], "it is a folder"),
        (["1", "--port", "0"], "--port"),
        (["--port", "8123"], "--port: expected a lab to open, got 'no lab'"),
        (["1", "--export", "page.html", "--edit"], "--edit: expected a lab to open"),
    ):
        assert rueda("lab", *words) == 2
        assert expected in capsys.readouterr().err


def test_the_command_that_opens_a_lab() -> None:
    found = opening.command(lab(1), port=2718, browser=False)
    assert found[:4] == [sys.executable, "-m", "marimo", "run"] and found[4].endswith("lab_1_gradient_descent.py")
    assert "--token" in found and "--headless" in found and found[found.index("--host") + 1] == "127.0.0.1"
    assert opening.command(lab(1), edit=True)[3] == "edit"
