"""Every lab runs from start to end without a browser, and becomes a page."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from rueda.labs.answering import answer_of, check_of, items
from rueda.labs.catalogue import LABS, Lab
from rueda.labs.exercises import Exercise
from rueda.labs.explore import Shown
from rueda.labs.exporting import page, run_notebook
from rueda.labs.questions import Reply

WRITTEN = [one for one in LABS if one.notebook.is_file()]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUEDA_STATE", str(tmp_path))


@pytest.mark.parametrize("one", WRITTEN, ids=lambda one: one.name)
def test_a_lab_runs_from_start_to_end(one: Lab) -> None:
    outputs = run_notebook(one)
    cells = [node for node in ast.parse(one.notebook.read_text()).body if isinstance(node, ast.FunctionDef)]
    assert len(outputs) == len(cells)  # each cell shows something
    for output in outputs:
        if hasattr(output, "_mime_"):
            output._mime_()
    assert sum(isinstance(output, Shown) for output in outputs) >= 5
    assert sum(isinstance(output, Reply) for output in outputs) >= 5
    if one.number == 1:  # the pages of the others are written by the tests of the browser
        assert len(page(one, outputs)) < 5_000_000


@pytest.mark.parametrize("one", WRITTEN, ids=lambda one: one.name)
def test_the_answers_are_right(one: Lab) -> None:
    source = ast.parse(one.notebook.read_text())
    starts = {
        ast.literal_eval(call.args[0]): ast.literal_eval(word.value)
        for call in ast.walk(source) if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "Exercise"
        for word in call.keywords if word.arg == "start"
    }  # fmt: skip
    for key in items(one.number):
        if key in starts:
            assert Exercise(key, "", starts[key]).judge(check_of(key).solution).right, key
            assert Exercise(key, "", starts[key]).judge(starts[key]).right is False, key
        else:
            assert answer_of(key).accepts(answer_of(key).value), key
