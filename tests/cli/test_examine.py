"""``rueda examine`` on runs, foreign checkpoints and galleries: what it writes, and one line for a mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from commandline import rueda, rueda_without_torch
from rueda.cli.examine import examine
from rueda.errors import RuedaError
from rueda.records.curvature import Curvature
from rueda.records.landscape import Landscape
from rueda.world import finish

TASK = """
import sys
sys.path.insert(0, {tests!r})
from tinytask import tiny_task
task = tiny_task()
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a task file and two checkpoints of it, one a plain state dictionary."""
    from tinytask import network

    folder = tmp_path_factory.mktemp("examine")
    (folder / "clouds.py").write_text(TASK.format(tests=str(Path(__file__).parents[1])))
    for seed, name in enumerate(("one.pt", "other.pt")):
        torch.manual_seed(seed)
        torch.save(network().state_dict(), folder / name)
    state = network().state_dict()
    state["0.bias"][3] = torch.nan
    torch.save(state, folder / "nan.pt")
    return folder


def call(*words: object) -> str:
    app = typer.Typer()
    app.command()(examine)
    answer = CliRunner().invoke(app, [str(word) for word in words])
    if answer.exception is not None and not isinstance(answer.exception, SystemExit):
        raise answer.exception
    assert answer.exit_code == 0, answer.output
    return answer.output


def test_a_foreign_checkpoint(home: Path, tmp_path: Path) -> None:
    options = ("--task", home / "clouds.py", "--points", 3, "--workers", 1, "--folder", tmp_path)
    told = call(home / "one.pt", *options)
    assert "one: surface of 3 x 3 points, train loss" in told and f"record: {tmp_path}/landscape.json" in told
    found = Landscape.load(tmp_path)
    (member,) = found.members
    assert found.task == "clouds" and member.surface is not None and member.lines is None
    assert [sheet.split for sheet in member.surface.sheets] == ["train", "test"]
    page = (tmp_path / "report.html").read_text()
    assert "The landscape of one" in page and 'data-figure="landscape-surface"' in page
    assert not (tmp_path / ".points").exists()
    # A second picture of the same weights joins the first; numbers are those of the library.
    call(home / "one.pt", "--line", "--lines", 2, *options)
    (both,) = Landscape.load(tmp_path).members
    assert both.surface == member.surface and both.lines is not None and len(both.lines.sheets[0].loss) == 2
    # Of other weights, nothing old is kept.
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "one.pt").write_bytes((home / "other.pt").read_bytes())
    call(tmp_path / "elsewhere" / "one.pt", "--line", *options)
    assert Landscape.load(tmp_path).members[0].surface is None


def test_a_gallery_with_everything(home: Path, tmp_path: Path) -> None:
    told = call(
        home / "one.pt", home / "other.pt", "--landscape", "--line", "--interpolate", "--sharpness", "--hessian",
        "--task", home / "clouds.py", "--points", 3, "--examples", 40, "--workers", 1, "--folder", tmp_path, "--json",
    )  # fmt: skip
    landscape, curvature = (json.loads(line) for line in _documents(told))
    assert [member["name"] for member in landscape["members"]] == ["one", "other"]
    first, second = landscape["members"]
    assert (first["interpolation"]["start"], first["interpolation"]["end"]) == ("one", "other")
    assert second["interpolation"] is None and second["num_examples"] == 40
    assert [member["name"] for member in curvature["members"]] == ["one", "other"]
    assert curvature["members"][0]["hessian"]["eigenvalues"][0]["value"] > 0
    page = (tmp_path / "report.html").read_text()
    for figure in ("landscape-surface", "landscape-contours", "lines-loss", "lines-error", "interpolation"):
        assert f'data-figure="{figure}"' in page


def test_seeds_are_told_apart_and_what_is_known_is_not_computed_again(home: Path, tmp_path: Path) -> None:
    """Two studies, 8 and 64 workers, have runs of the same names; a stopped command goes on behind the last model."""
    import rueda
    from tinytask import tiny_task

    task = tiny_task()

    runs = []
    for workers in (2, 4):
        for seed in (0, 1):
            runs.append(tmp_path / f"{workers}-workers" / f"naive-seed{seed}")
            recipe = task.recipe.change(workers=workers, seed=seed, epochs=1)
            rueda.fit(task, recipe, folder=runs[-1], rehearse=True, progress=False)
    options = ("--hessian", "--no-density", "--task", home / "clouds.py", "--examples", 40, "--workers", 1)
    told = call(*runs[:3], *options, "--folder", tmp_path / "found")
    assert (
        "naive, 2 workers, rehearsed, seed 1: top eigenvalue" in told
        and "naive, 4 workers, rehearsed: top eigenvalue" in told
    )
    first = Curvature.load(tmp_path / "found")
    assert [(one.name, one.seed) for one in first.members] == [
        ("naive, 2 workers", 0), ("naive, 2 workers", 1), ("naive, 4 workers", 0)
    ]  # fmt: skip
    assert all(one.hessian is not None and one.hessian.density is None for one in first.members)
    again = call(*runs, *options, "--folder", tmp_path / "found")
    assert "naive, 4 workers, rehearsed, seed 1: top eigenvalue" in again
    second = Curvature.load(tmp_path / "found")
    assert [(one.name, one.seed) for one in second.members] == [
        ("naive, 2 workers", 0), ("naive, 2 workers", 1), ("naive, 4 workers", 0), ("naive, 4 workers", 1)
    ]  # fmt: skip
    assert second.members[0] == first.members[0] and second.members[2] == first.members[2]  # seconds and all
    # More is asked for: computed.
    call(*runs, *options[:1], *options[2:], "--sharpness", "--folder", tmp_path / "found")
    third = Curvature.load(tmp_path / "found").members
    assert all(one.hessian is not None and one.hessian.density is not None and one.sharpness for one in third)


def _documents(text: str) -> list[str]:
    """Cut several JSON documents apart."""
    decoder, found, place = json.JSONDecoder(), [], 0
    while place < len(text.rstrip()):
        _, end = decoder.raw_decode(text, place)
        found.append(text[place:end])
        place = end + 1
    return found


def test_two_workers_write_the_same_numbers(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--task", str(home / "clouds.py"), "--points", "4", "--batch-norm", "running"]
    for workers in (1, 2):
        more = ["--workers", str(workers), "--folder", str(tmp_path / str(workers))]
        run = rueda_without_torch if workers > 1 else rueda
        done = run("examine", str(home / "one.pt"), *words, *more)
        assert (done if isinstance(done, int) else done.returncode) == 0
    one, two = (Landscape.load(tmp_path / name) for name in ("1", "2"))
    assert one.members == two.members
    assert " examine " in two.command and "--workers 2" in two.command


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["nan.pt"], "the parameter 0.bias: expected finite numbers, got '1 NaN or infinite of 16'"),
        (["missing.pt"], "expected a run folder or a checkpoint file"),
        (["one.pt", "--interpolate"], "--interpolate: expected two runs or checkpoints, got 1"),
        (["one.pt", "--path"], "expected a run folder with its checkpoints"),
        (["one.pt", "--splits", "validation"], "--splits: expected train, test or both"),
        (["one.pt", "--points", "1"], "points: expected 2 or more, got 1"),
        (["one.pt", "--workers", "0"], "--workers: expected 1 or more, got 0"),
        (["one.pt", "--set", "model.batch_norm=true"], "belongs to another model than the one that task clouds builds"),
        (["one.pt", "one.pt", "--interpolate"], r"the line from one to one \(2\): expected a length above 0"),
    ],
)
def test_mistakes_are_one_line(words: list[str], line: str, home: Path, tmp_path: Path) -> None:
    placed = [str(home / word) if word.endswith(".pt") else word for word in words]
    options = [] if "--workers" in words else ["--workers", "1"]
    with pytest.raises(RuedaError, match=line) as error:
        call(*placed, "--task", home / "clouds.py", "--folder", tmp_path, *options)
    assert len(str(error.value).splitlines()) == 1


MPIRUN = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}


@pytest.mark.parametrize("workers", [(), ("--workers", 4)])
def test_under_mpirun_its_workers_compute(
    workers: tuple[object, ...], home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither an estimate nor workers of its own, for which the other ranks would wait."""
    finish()  # what an earlier test has opened
    met: list[str] = []
    monkeypatch.setattr("rueda.world.open_world", lambda: met.append("world"))
    monkeypatch.setattr("rueda.examine.job.examine_models", lambda request, models, world: met.append("examine"))
    monkeypatch.setattr("rueda.examine.job.estimate_seconds", lambda *given: met.append("estimate"))
    monkeypatch.setattr("rueda.jobs.run", lambda *given, **more: met.append("run"))
    for name, value in MPIRUN.items():
        monkeypatch.setenv(name, value)
    told = call(home / "one.pt", "--task", home / "clouds.py", "--folder", tmp_path, *workers)
    assert met == ["world", "examine"] and told == ""


def test_who_only_starts_workers_opens_no_world(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    monkeypatch.setattr("rueda.world.open_world", lambda: pytest.fail("a world was opened"))
    monkeypatch.setattr("rueda.examine.job.estimate_seconds", lambda *given: 1e9)
    monkeypatch.setattr("rueda.world.cores.usable_cores", lambda: 3)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("rueda.jobs.run", lambda job, workers: started.append(workers))
    monkeypatch.setattr("rueda.cli.examine._show_results", lambda *given: None)
    call(home / "one.pt", "--task", home / "clouds.py", "--folder", tmp_path)
    assert started == [3]


def test_a_task_file_that_changes_the_directory(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    for name in ("one.pt", "other.pt"):
        (tmp_path / name).write_bytes((home / name).read_bytes())
    (tmp_path / "leaves.py").write_text(
        (home / "clouds.py").read_text() + f"import os\nos.chdir({str(tmp_path / 'elsewhere')!r})\n"
    )
    monkeypatch.chdir(tmp_path)
    call("one.pt", "other.pt", "--task", "leaves.py", "--points", 2, "--workers", 1)
    assert len(Landscape.load(tmp_path / "runs" / "examine-one-other").members) == 2
    assert not list((tmp_path / "elsewhere").iterdir())
