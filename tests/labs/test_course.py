"""The labs as a whole: notebooks and answers agree, and reading the list loads nothing heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rueda.errors import LabError
from rueda.labs.answering import answer_of, check_of, items
from rueda.labs.catalogue import LABS, Lab, lab

WRITTEN = [one for one in LABS if one.notebook.is_file()]


def calls(one: Lab, name: str) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(one.notebook.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
            yield node


def keys(one: Lab, name: str) -> list[str]:
    return [str(ast.literal_eval(call.args[0])) for call in calls(one, name)]


def test_reading_the_list_loads_neither_torch_nor_marimo() -> None:
    code = (
        "import sys; from rueda.labs.answering import items; from rueda.labs.catalogue import LABS\n"
        "from rueda.labs.progress import answered\n"
        "for lab in LABS: items(lab.number), answered(lab.number)\n"
        "print([name for name in ('torch', 'marimo', 'numpy', 'plotly') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_unknown_lab() -> None:
    with pytest.raises(LabError, match="from 1 to 4, got 7"):
        lab(7)


@pytest.mark.parametrize("one", WRITTEN, ids=lambda one: one.name)
def test_every_question_has_an_answer_and_every_answer_a_question(one: Lab) -> None:
    asked = keys(one, "Question") + keys(one, "Exercise")
    assert sorted(asked) == sorted(items(one.number))
    assert len(set(asked)) == len(asked) >= 8
    for key in keys(one, "Question"):
        answer = answer_of(key)
        assert answer.why and len(answer.hints) >= 2, key
    for key in keys(one, "Exercise"):
        assert check_of(key).why and len(check_of(key).hints) >= 2, key


@pytest.mark.parametrize("one", WRITTEN, ids=lambda one: one.name)
def test_the_right_choice_is_among_the_choices(one: Lab) -> None:
    for call in calls(one, "Question"):
        options = {word.arg: word.value for word in call.keywords}
        right = answer_of(str(ast.literal_eval(call.args[0]))).right
        if "choices" in options and isinstance(right, str):
            assert right in ast.literal_eval(options["choices"])
        if "unit" in options:
            assert not isinstance(right, str)


@pytest.mark.parametrize("one", WRITTEN, ids=lambda one: one.name)
def test_a_notebook_has_the_header_and_imports_no_network(one: Lab) -> None:
    source = one.notebook.read_text()
    assert source.startswith('# /// script\n# [tool.marimo.display]\n# theme = "system"\n# ///\n')
    assert source.count("    begin()\n") == 1
    assert "http://" not in source and "$" not in source
