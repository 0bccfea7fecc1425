"""Questions and exercises: right, wrong, the hints in their order, and what a learner has done is kept."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rueda.errors import LabError
from rueda.labs import exercises, progress
from rueda.labs.answering import Answer, check_of, digest, items, sealed
from rueda.labs.catalogue import LABS
from rueda.labs.exercises import Exercise
from rueda.labs.opening import open_lab
from rueda.labs.questions import Question


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RUEDA_STATE", str(tmp_path))
    return tmp_path


def test_a_choice() -> None:
    question = Question("1.wander", "Why?", choices=("data without noise", "more epochs"))
    assert question.reply(None).right is None
    first, second, third = (question.reply("more epochs") for _ in range(3))
    assert first.right is False and "noise to 0" in first.text
    assert second.text == third.text != first.text
    assert progress.answered(1) == set()
    right = question.reply("data without noise")
    assert right.right is True and "Without noise" in right.text
    assert progress.answered(1) == {"1.wander"}
    assert question.reply("more epochs").right is False
    assert progress.answered(1) == {"1.wander"}  # once answered, always answered


@pytest.mark.parametrize(
    ("given", "right"), [("4.3", True), ("4,3", True), (" 4.34 ", True), ("31", False), ("inf", False)]
)
def test_a_number(given: str, right: bool) -> None:
    question = Question("1.days", "How long?", unit="days")
    assert question.reply(given).right is right


def test_what_is_no_number() -> None:
    reply = Question("1.days", "How long?", unit="days").reply("four")
    assert reply.right is False and "give a number" in reply.text
    assert progress.answered(1) == set()


def test_the_static_question_holds_no_answer() -> None:
    html = Question("1.wander", "Why?", choices=("data without noise", "more epochs")).reply(None).static()
    assert "all points lie on one line" not in html
    assert digest("1.wander", "data without noise") in html


def test_a_sealed_text_opens_with_the_same_key() -> None:
    closed = bytes.fromhex(sealed("s", "right", "because: ×"))
    assert bytes.fromhex(sealed("s", "right", closed.decode("latin-1"))) != closed
    stream = bytes(one ^ other for one, other in zip(closed, "because: ×".encode(), strict=True))
    assert bytes(one ^ other for one, other in zip(closed, stream, strict=True)).decode() == "because: ×"


def test_numbers_near_the_edge_of_a_cell_are_right() -> None:
    answer = Answer(right=0.0250, why="", hints=["x"], tolerance=0.0005)
    assert all(answer.accepts(given) for given in (0.0250, 0.02549, 0.02451))
    assert not any(answer.accepts(given) for given in (0.0262, 0.0238, -0.025))


@pytest.mark.parametrize("key", items(1)[-4:])
def test_solutions_pass(key: str) -> None:
    judgement = Exercise(key, "", "").judge(check_of(key).solution)
    assert judgement.right, judgement.text
    assert progress.answered(1) == {key}


def test_wrong_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exercises, "SECONDS", 120)  # a start of a process may take that long on one busy core
    exercise = Exercise("1.updates-per-epoch", "", "")
    assert exercise.judge(None).right is None
    skeleton = exercise.judge("def updates_per_epoch(num_points, batch):\n    return ...\n")
    assert skeleton.right is False and "three dots" in skeleton.text
    floor = exercise.judge("def updates_per_epoch(n, batch):\n    return n // batch\n")
    assert "`updates_per_epoch(100, 8)` gave 12; the library gives 13." in floor.text and "round up" in floor.text
    assert "SyntaxError" in exercise.judge("def updates_per_epoch(n batch):\n    return 1\n").text
    assert "There is no function `updates_per_epoch`." in exercise.judge("x = 1").text
    talking = exercise.judge("def updates_per_epoch(n, batch):\n    print('n is', n)\n    return 1 / 0\n").text
    assert "division by zero (line 3). " in talking and "It printed: `n is 100`" in talking
    for end in ("import sys; sys.exit(0)", "import os; os.kill(os.getpid(), 15)"):
        left = exercise.judge(f"def updates_per_epoch(n, batch):\n    {end}\n")
        assert "The process ended without a result." in left.text
    own = exercise.judge("def updates_per_epoch(n, batch):\n    return (one for one in range(n))\n")
    assert "gave '<generator object" in own.text
    monkeypatch.setattr(exercises, "SECONDS", 3)
    endless = exercise.judge("def updates_per_epoch(n, batch):\n    while True: pass\n")
    assert endless.right is False and "still running after 3 seconds" in endless.text


def test_what_was_answered_is_marked_on_the_next_visit() -> None:
    question, exercise = Question("1.days", "How many?", unit="days"), Exercise("1.efficiency", "", "")
    assert question.reply(None).text == "" and exercise.judge(None).text == ""
    assert question.reply({"number": "4,3"}).right
    exercise.judge(check_of("1.efficiency").solution)
    again = Question("1.days", "How many?", unit="days").reply(None)
    assert again.right is None and "answered this before" in again._mime_()[1] and "before" not in again.static()
    assert "answered this before" in Exercise("1.efficiency", "", "").judge(None)._mime_()[1]


def test_a_port_in_use_is_an_error_of_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(LabError, match="a free port"):
            open_lab(LABS[0], port=taken.getsockname()[1], browser=False)


def test_two_labs_at_once_lose_nothing() -> None:
    keys = [f"2.item-{number}" for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: progress.note(key, right=True), keys))
    assert progress.answered(2) == set(keys)
    progress.forget(2)
    assert progress.answered(2) == set()


def test_a_damaged_record_is_as_none(state: Path) -> None:
    progress.note("1.days", right=True)
    (state / "labs" / "1.days.json").write_text("{")
    assert progress.answered(1) == set()
    assert progress.note("1.days", right=True) == 1
    assert json.loads((state / "labs" / "1.days.json").read_text())["tries"] == 1


def test_without_a_folder_the_lab_goes_on(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (state / "file").write_text("")
    monkeypatch.setenv("RUEDA_STATE", str(state / "file"))
    assert progress.note("1.days", right=True) == 1
