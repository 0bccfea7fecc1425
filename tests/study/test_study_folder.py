"""The study's folder: one base recipe and one state of the task's file to a table, older files, damaged ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jobshere import run_jobs_here
from rueda.errors import RunError
from rueda.records import Recipe
from rueda.records.archive import archive_study
from rueda.records.study import Study
from rueda.study import study_techniques
from tinytask import tiny_task

TASK = """
import sys
sys.path.insert(0, {tests!r})
from tinytask import tiny_task
task = tiny_task()
"""


def table(folder: Path, *rows: str, task: Any = None, **options: Any) -> Study:
    given = tiny_task() if task is None else task
    return study_techniques(given, 4, rows=rows, epochs=1, folder=folder, progress=False, **options)


def rewrite(folder: Path, **changes: Any) -> None:
    """Change ``study.json``; None removes a field, as an older Rueda has it."""
    data = {**json.loads((folder / "study.json").read_text()), **changes}
    (folder / "study.json").write_text(json.dumps({name: value for name, value in data.items() if value is not None}))


OLD = {"recipe": None, "commands": None, "task_file": None}


@pytest.mark.parametrize("changes", [{}, OLD], ids=["this format", "the older one"])
@pytest.mark.parametrize("first", ["one-worker", "naive"])
def test_rows_of_two_settings_do_not_mix(first: str, changes: dict[str, Any], tmp_path: Path) -> None:
    table(tmp_path, first)
    rewrite(tmp_path, **changes)
    with pytest.raises(RunError) as error:
        table(tmp_path, "lamb", settings=["clip=2", "momentum=0.5"])
    assert str(error.value) == (
        f"{tmp_path} was trained with momentum = 0.9, clip = none, but now the request is "
        "momentum = 0.5, clip = 2.0; choose another --folder"
    )
    assert not (tmp_path / "runs" / "lamb-seed0").exists()
    # The same settings go on, with further seeds too.
    assert [row.name for row in table(tmp_path, "lamb").rows] == ["lamb", first]
    assert table(tmp_path, "lamb", settings=["seed=3"]).rows[0].seeds == (0, 3)


def test_an_older_file_that_does_not_show_its_settings_is_taken(tmp_path: Path) -> None:
    table(tmp_path, "lamb")
    rewrite(tmp_path, **OLD)
    study = table(tmp_path, "naive", settings=["momentum=0.5"])
    assert [row.name for row in study.rows] == ["naive", "lamb"]
    assert Recipe.from_toml(study.recipe).momentum == 0.5 and "seed" not in study.recipe


def test_every_command_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (["one"], ["two"], ["one"]):
        monkeypatch.setattr("sys.argv", ["/bin/rueda", *words])
        study = table(tmp_path, "naive")
    assert study.command == "rueda one" and study.commands == ("rueda one", "rueda two")
    rewrite(tmp_path, commands=None, command="rueda zero")
    assert table(tmp_path, "naive").commands == ("rueda zero", "rueda one")


DAMAGED = {
    "no JSON": ("{", "expected JSON"),
    "a wrong value": (json.dumps({"kind": "techniques", "format": 1, "task": 3}), "study.task: expected str"),
    "no recipe": (
        Study(task="clouds", workers=4, epochs=1, recipe="rate = = 1").to_json(),
        "expected a base recipe, got: expected TOML",
    ),
}


@pytest.mark.parametrize(("text", "message"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_table_is_told_how_to_mend(text: str, message: str, tmp_path: Path) -> None:
    rows = table(tmp_path, "naive").rows
    (tmp_path / "study.json").write_text(text)
    with pytest.raises(RunError) as error:
        table(tmp_path, "naive")
    assert message in str(error.value) and len(str(error.value).splitlines()) == 1
    assert str(error.value).endswith("; remove it: the runs are kept, and the same command writes it again")
    (tmp_path / "study.json").unlink()
    assert table(tmp_path, "naive").rows == rows


@pytest.fixture
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    run_jobs_here(monkeypatch)


@pytest.mark.usefixtures("_in_this_process")
def test_rows_of_two_states_of_a_file_do_not_mix(tmp_path: Path) -> None:
    file, study = tmp_path / "mine.py", tmp_path / "study"
    text = TASK.format(tests=str(Path(__file__).parents[1]))
    file.write_text(text)
    table(study, "naive", "one-worker", task=str(file))
    file.write_text(text + "\n# a wider network\n")
    told = f"{file} has changed since these rows were trained in {study}: "
    for rows in (["lamb"], ["naive"]):  # new ones, and what seems to be finished
        with pytest.raises(RunError) as error:
            table(study, *rows, task=str(file))
        assert str(error.value) == f"{told}naive, one-worker; choose another --folder, or put the old file back"
    (study / "study.json").unlink()  # the runs know it, too
    with pytest.raises(RunError, match="naive, one-worker; choose another"):
        table(study, "lamb", task=str(file))
    file.write_text(text)
    assert [row.name for row in table(study, "naive", "one-worker", "lamb", task=str(file)).rows][-1] == "lamb"


def test_a_file_that_changes_while_the_study_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, study = tmp_path / "mine.py", tmp_path / "study"
    file.write_text(TASK.format(tests=str(Path(__file__).parents[1])))

    def change() -> None:
        file.write_text(file.read_text() + "# changed\n")

    run_jobs_here(monkeypatch, after_each=change)
    with pytest.raises(RunError, match="was changed while the study ran; put the old file back, or choose another"):
        table(study, "naive", "lamb", task=str(file))
    assert [row.name for row in Study.load(study).rows] == ["naive"]
    assert not (study / "runs" / "lamb-seed0").exists()


@pytest.mark.usefixtures("_in_this_process")
def test_runs_of_an_older_rueda_have_no_checksum_and_go_on(tmp_path: Path) -> None:
    file, study = tmp_path / "mine.py", tmp_path / "study"
    file.write_text(TASK.format(tests=str(Path(__file__).parents[1])))
    table(study, "naive")  # of no file at all
    assert Study.load(study).task_file is None
    found = table(study, "lamb", task=str(file))
    assert [row.name for row in found.rows] == ["lamb", "naive"] and len(found.task_file or "") == 64


def test_an_archived_study_is_not_gone_on_with(tmp_path: Path) -> None:
    table(tmp_path / "study", "naive")
    archive_study(tmp_path / "study", tmp_path / "kept")
    with pytest.raises(RunError, match="holds an archived study, without its runs; choose another --folder"):
        table(tmp_path / "kept", "lamb")
