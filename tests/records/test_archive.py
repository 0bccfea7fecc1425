"""An archived study: read like the study itself, by the report too; damage refused in one line."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from report.samples import write_json, write_others, write_study
from rueda.errors import RunError
from rueda.records import Recipe, Row, Run
from rueda.records.archive import FILE, archive_study, read_archive
from rueda.records.profile import NoiseScale
from rueda.records.run import NoiseRow
from rueda.records.study import Study
from rueda.records.task_file import TaskFile
from rueda.report import write_report
from rueda.report.markdown import markdown_tables


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return write_others(write_study(tmp_path / "study"))


def test_the_page_and_the_tables_are_the_same(study: Path, tmp_path: Path) -> None:
    found = archive_study(study, tmp_path / "kept" / "study")
    runs = [name for row in Study.load(study).rows for name in row.runs]
    assert found.file == tmp_path / "kept" / "study" / FILE and found.num_runs == len(runs) > 5
    assert sorted(file.name for file in found.file.parent.iterdir()) == [
        "gd.json", "runs.jsonl", "steps.json", "study.json", "throughput.json",
    ]  # fmt: skip
    pages = [
        write_report([place], tmp_path / "page.html").read_bytes() for place in (study, found.file.parent, found.file)
    ]
    assert pages[0] == pages[1] == pages[2]
    assert markdown_tables([study]) == markdown_tables([found.file.parent])
    # An archive of the archive is the archive.
    assert archive_study(found.file.parent, tmp_path / "again").file.read_bytes() == found.file.read_bytes()


def write_everything(folder: Path) -> Run:
    """Write a run with all that a run may hold, as the one row of a study."""
    run = Run(folder / "runs" / "odd")
    recipe = Recipe(
        workers=4, milestones=(1.0, 2.5), model={"width": 2, "batch_norm": True}, clip=0.5, seed=7,
        reasons={"clip": "spikes at step 3"},
    )  # fmt: skip
    run.begin(recipe, "clouds", task_file=TaskFile(path="/home/me/clouds.py", sha256="abc"), rehearsed=True)
    common = {"examples": 96, "seconds": 1 / 3, "train_accuracy": None, "rate": 0.1, "global_batch": 32}
    run.append_all(
        [
            Row(kind="step", epoch=0, step=2, train_loss=2 / 3, images_per_second=1e5 / 7, **common),
            Row(
                kind="epoch", epoch=1, step=3, train_loss=math.nan, images_per_second=0.0, test_loss=1e-9,
                test_accuracy=0.25, test_correct=25, rehearsed=True, diverged=True, recalibrated=True, noise_scale=12.5,
                **common,
            ),
            NoiseRow(
                epoch=1, examples=96, seconds=0.5, global_batch=32,
                noise=NoiseScale(step=3, steps=2, value=900.0, low=100.0, high=math.inf, variance=9.0, square=0.01),
            ),
        ]
    )  # fmt: skip
    row: dict[str, Any] = {
        "name": "odd", "summary": "", "workers": 4, "global_batch": 32, "epochs": 1, "updates": 3,
        "test_accuracy": None, "seconds": 1.0, "images_per_second": 1.0, "rehearsed": True, "seeds": [7], "diverged": 1,
        "runs": ["runs/odd"],
    }  # fmt: skip
    about = {"format": 1, "kind": "techniques", "task": "clouds", "workers": 4, "epochs": 1, "rows": [row]}
    (folder / "study.json").write_text(json.dumps(about))
    return run


def test_every_part_of_a_run_comes_back(tmp_path: Path) -> None:
    run = write_everything(tmp_path / "study")
    commit = run.environment()["commit"]
    found = archive_study(tmp_path / "study", tmp_path / "kept")
    assert found.modified == ((commit,) if commit and commit.endswith("+") else ())
    [(name, again)] = read_archive(tmp_path / "kept").items()
    assert name == "runs/odd"
    assert again.recipe() == run.recipe() and again.recipe().reasons == {"clip": "spikes at step 3"}
    about = run.environment()
    assert about.pop("task_file")["path"] == "/home/me/clouds.py"  # stays on this machine
    assert again.environment() == about
    assert again.noise_rows() == run.noise_rows() and again.noise_scales()[0].high == math.inf
    for old, new in zip(run.rows(), again.rows(), strict=True):
        for field, value in vars(old).items():
            expected = pytest.approx(value, rel=1e-5) if isinstance(value, float) else value
            assert getattr(new, field) == expected, field
    text = found.file.read_text()
    assert [json.loads(line)["kind"] for line in text.splitlines()] == [
        "archive", "environment", "run", "step", "epoch", "noise",
    ]  # fmt: skip
    assert '"train_loss": 0.666667' in text and text.count("recalibrated") == 1


def test_recipes_are_told_by_what_differs(study: Path, tmp_path: Path) -> None:
    archive_study(study, tmp_path / "kept")
    lines = [json.loads(line) for line in (tmp_path / "kept" / FILE).read_text().splitlines()]
    runs = {line["run"]: line for line in lines if line["kind"] == "run"}
    first, *others = Study.load(study).rows
    assert "recipe" not in runs[first.runs[0]]
    assert all("rows" not in line and len(line["recipe"]) < 12 for name, line in runs.items() if name != first.runs[0])
    assert len([line for line in lines if line["kind"] == "environment"]) == 1
    for row in others:
        assert read_archive(tmp_path / "kept")[row.runs[0]].recipe() == Run(study / row.runs[0]).recipe()


def damaged(number: int, text: str) -> Any:
    def damage(lines: list[str]) -> None:
        lines[number] = text

    return damage


DAMAGES = {
    "not JSON": (damaged(3, "{"), "line 4: expected a line of an archive, got: "),
    "a list": (damaged(3, "[]"), "line 4"),
    "no kind": (damaged(3, "{}"), "'kind' is missing or unknown"),
    "a row of nobody": (damaged(3, '{"kind": "epoch", "run": "runs/none"}'), "'runs/none' is missing or unknown"),
    "a row without a run": (damaged(3, '{"kind": "epoch"}'), "'run' is missing or unknown"),
    "another format": (damaged(0, '{"kind": "archive", "format": 9, "recipe": {}}'), "format: expected 1, got 9"),
    "no header": (lambda lines: lines.pop(0), "line 1: expected a line of an archive, got: kind: expected archive"),
    "two headers": (lambda lines: lines.append(lines[0]), "archive in the first line alone"),
    "a run without an environment": (
        damaged(1, '{"kind": "environment", "number": 5, "about": {}}'),
        "with a line above",
    ),
    "an environment that is a number": (damaged(1, '{"kind": "environment", "number": 1, "about": 1}'), "line 2"),
    "two runs of a name": (lambda lines: lines.append(lines[2]), "run: expected each name once, got"),
    "a run that is a number": (
        damaged(2, '{"kind": "run", "run": 3, "environment": 1}'),
        "run.run: expected str, got 3",
    ),
}


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archived")
    return archive_study(write_others(write_study(folder / "study")), folder / "kept").file.parent


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_damage_is_one_line(damage: Any, message: str, archived: Path, tmp_path: Path) -> None:
    file = shutil.copytree(archived, tmp_path / "kept") / FILE
    lines = file.read_text().splitlines()
    damage(lines)
    file.write_text("\n".join(lines))
    with pytest.raises(RunError) as error:
        write_report([file.parent], tmp_path / "page.html")
    told = str(error.value)
    assert told.startswith(f"{file}, line ") and message in told and "\n" not in told
    assert told.endswith("; make it again with `rueda archive`")


def test_what_is_no_whole_study_is_not_archived(study: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="choose a new one"):
        archive_study(study, study)
    with pytest.raises(RunError, match="expected a study"):
        archive_study(tmp_path / "nothing", tmp_path / "kept")
    other = write_study(tmp_path / "other", task="cifar10-cnn")
    archive_study(other, tmp_path / "taken")
    with pytest.raises(RunError, match="holds a study of task cifar10-cnn"):
        archive_study(study, tmp_path / "taken")
    (tmp_path / "taken" / "README.md").write_text("Kept.")
    archive_study(other, tmp_path / "taken")
    for key, value, message in (("epochs", 99, "99 epochs; choose"), ("recipe", "rate = 3.0", "another base recipe")):
        data = json.loads((other / "study.json").read_text())
        write_json(other / "study.json", {"recipe": "rate = 0.1", **data, key: value})
        write_json(tmp_path / "taken" / "study.json", {"recipe": "rate = 0.1", **data})
        with pytest.raises(RunError, match=message):
            archive_study(other, tmp_path / "taken")
        write_json(other / "study.json", data)
    for name in ("recipe.toml", "landscape.json", "throughput.json"):  # the last is a study of its own there
        (tmp_path / name.partition(".")[0]).mkdir()
        (tmp_path / name.partition(".")[0] / name).write_text("{}")
        with pytest.raises(RunError, match=f"an older archive, got {name}; choose another folder"):
            archive_study(study, tmp_path / name.partition(".")[0])
    with pytest.raises(RunError, match="expected a folder for an archive, got"):
        archive_study(study, tmp_path / "taken" / "README.md")
    missing = Study.load(study).rows[1].runs[0]
    shutil.rmtree(study / missing)
    with pytest.raises(RunError, match="recipe"):
        archive_study(study, tmp_path / "kept")
    assert not (tmp_path / "kept").exists()
    data = json.loads((study / "study.json").read_text())
    for outside in ("../other", str(tmp_path / "other"), "runs/a\0b"):
        data["rows"][1]["runs"] = [outside]
        write_json(study / "study.json", data)
        with pytest.raises(RunError, match="expected runs in its folder, got"):
            archive_study(study, tmp_path / "kept")
    write_json(study / "study.json", {**data, "rows": []})
    with pytest.raises(RunError, match="expected a study with runs, got none"):
        archive_study(study, tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_a_file_that_was_cut_is_refused(study: Path, tmp_path: Path) -> None:
    file = archive_study(study, tmp_path / "kept").file
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:-1]))
    with pytest.raises(RunError, match=r"expected \d+ rows of runs/.*, got \d+; make it again"):
        read_archive(file.parent)
    for few in (0, 1, 2):
        file.write_text("".join(lines[:few]))
        with pytest.raises(RunError, match="expected an archive of runs, got none; make it again"):
            read_archive(file.parent)
    older = [{key: value for key, value in json.loads(line).items() if key != "num_rows"} for line in lines[:-1]]
    file.write_text("".join(json.dumps(line) + "\n" for line in older))  # older files have no numbers
    assert read_archive(file.parent)


def test_files_of_the_former_archive_go(study: Path, tmp_path: Path) -> None:
    archive_study(study, tmp_path / "kept")
    (study / "throughput.json").unlink()
    archive_study(study, tmp_path / "kept")
    assert not (tmp_path / "kept" / "throughput.json").exists() and (tmp_path / "kept" / "gd.json").exists()


def test_an_archived_run_is_not_written(tmp_path: Path) -> None:
    row = write_everything(tmp_path / "study").rows()[0]
    file = archive_study(tmp_path / "study", tmp_path / "kept").file
    before, run = file.read_bytes(), read_archive(tmp_path / "kept")["runs/odd"]
    writers: list[Callable[[], object]] = [
        lambda: run.begin(Recipe(), "clouds"), lambda: run.append(row), lambda: run.forget_after(0),
    ]  # fmt: skip
    for write in writers:
        with pytest.raises(RunError, match="got an archive; use the study's own folder"):
            write()
    assert file.read_bytes() == before and sorted(one.name for one in file.parent.iterdir()) == [FILE, "study.json"]
