"""The command: one clear line for each mistake, the folder of the task, certificates, the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commandline import rueda, settle_in
from rueda.assess import command
from rueda.assess.material import DataAnswer, _text
from rueda.assess.settings import Settings, TaskData
from rueda.records.assessment import Assessment, Criterion, SavedEpoch

MISTAKES = {
    (): "expected one of a script, --new",
    ("train.py", "--calibrate"): "got 'a script and --calibrate'",
    ("missing.py",): "missing.py: expected a script, got 'No such file or directory'",
    ("notes.txt",): "expected a Python script such as train.py, got 'notes.txt'",
    ("train.py", "-np", "1"): "-np: expected 2 or more workers",
    ("train.py", "--target-accuracy", "75"): "--target-accuracy: expected a fraction between 0 and 1, got 75.0",
    ("train.py", "--within", "0"): "--within: expected a number of seconds",
    ("train.py", "--data", "mnist"): "--data: expected glyphs, fashion-mnist, cifar-10, got 'mnist'",
    ("train.py", "--certificate", "c.json"): "--certificate: expected --key FILE as well",
    ("train.py", "--key", "train.py"): "expected a key of 64 hexadecimal digits",
    ("--verify", "c.json"): "--verify: expected --key FILE as well",
    ("--folder", "empty"): "expected submissions such as alice.py or alice/train.py",
    ("--new", "full"): "--new: expected a folder that does not exist yet",
}


def passed(learner: str) -> Assessment:
    return Assessment(
        learner=learner, script="train.py", digest="00", task="glyphs", workers=2, target_accuracy=0.75, patience=2,
        within=100.0, criteria=(Criterion("runs", "it runs", "passed", 10, 10, "2 epochs"),),
        epochs=(SavedEpoch(1, 0.8, 0.8, 9.0, 12_000),), isolation=("Landlock 7",), passed=True, points=100.0,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    settle_in(tmp_path, monkeypatch)
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "notes.txt").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "train.py").touch()
    return tmp_path


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_line(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert rueda("assess", *words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("rueda: ") and printed.err.count("\n") == 1
    assert MISTAKES[words] in printed.err


def test_a_new_task_is_complete(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rueda("assess", "--new", "homework", "-np", "4", "--within", "120") == 0
    assert sorted(one.name for one in (here / "homework").iterdir()) == ["README.md", "data.npz", "task.py", "train.py"]
    text = (here / "homework" / "README.md").read_text()
    assert "rueda assess train.py -np 4 --target-accuracy 0.85 --patience 2 --within 120" in text
    assert "12,000 training examples" in text and "an accuracy of 85 % in 2 consecutive epochs" in text
    assert "read README.md there" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["glyphs", "fashion-mnist", "cifar-10"])
def test_the_command_in_the_readme_grades_the_same_data(name: str) -> None:
    settings = Settings(data=TaskData(name=name))
    text = _text(settings, DataAnswer(num_train=1, num_validation=1))
    words = next(line.split() for line in text.splitlines() if line.startswith("    rueda assess train.py"))
    assert (words[words.index("--data") + 1] if "--data" in words else "glyphs") == name


def test_a_result_is_printed_signed_and_shown(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "assess", lambda submission, settings, tell: passed(submission.learner))
    assert rueda("assess", "--new-key", "key") == 0
    words = ["train.py", "--key", "key", "--certificate", "c.json", "--output", "assessment.json", "--name", "Ada"]
    assert rueda("assess", *words) == 0
    assert "Ada has passed, 100 of 100 points" in capsys.readouterr().out
    assert rueda("assess", "--verify", "c.json", "--key", "key") == 0
    assert "c.json: genuine: Ada has passed with 100 points" in capsys.readouterr().out
    found = json.loads((here / "c.json").read_text())
    found["statement"]["learner"] = "Eve"
    (here / "c.json").write_text(json.dumps(found))
    assert rueda("assess", "--verify", "c.json", "--key", "key") == 1
    assert capsys.readouterr().err == "rueda: c.json: refused: it was changed, or signed with another key\n"
    assert rueda("report", "assessment.json", "--output", "page.html") == 0
    page = (here / "page.html").read_text()
    assert "Ada" in page and "What kept the script apart from the grader" in page
