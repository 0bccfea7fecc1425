"""The technique table: aggregation, resuming, and what is refused."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rueda.train
from jobshere import run_jobs_here
from rueda import jobs
from rueda.errors import DataError, JobError, RecipeError, RunError, TaskError
from rueda.files.lock import held
from rueda.jobs import Stopped
from rueda.records import Recipe, Row, Run
from rueda.records.metric import LOSS
from rueda.records.study import Study, control_of
from rueda.report import write_report
from rueda.study import study_techniques
from rueda.study.conditions import Condition, condition, conditions, default_rows
from rueda.study.runs import is_finished, summarise
from rueda.study.table import caption, table_of, verdict
from rueda.study.techniques import RunsFailed
from rueda.terminal.study_words import other_lengths
from tinytask import network, tiny_task

TASK = """
import sys, time
sys.path.insert(0, {tests!r})
from dataclasses import replace
from tinytask import network, tiny_task

def slow(**settings):
    model = network(**settings)
    model.register_forward_hook(lambda _, inputs, __: time.sleep({seconds} if len(inputs[0]) > 24 else 0.0))
    return model

task = replace(tiny_task(), model=slow)
"""
STUDY = """
import sys
from rueda.study import study_techniques
if __name__ == "__main__":
    study_techniques({task!r}, 4, rows={rows!r}, epochs={epochs}, folder={folder!r}, jobs={jobs})
"""


def made_run(folder: Path, recipe: Recipe, epochs: int, *, diverged: bool = False, test: float = 0.8) -> None:
    """Write a run by hand: 10 updates and 240 examples an epoch, 2 s each."""
    run = Run(folder)
    run.begin(recipe, "clouds", rehearsed=True)
    for epoch in range(1, epochs + 1):
        bad = diverged and epoch == epochs
        run.append(
            Row(
                kind="epoch", epoch=epoch, step=10 * epoch, examples=240 * epoch, seconds=2.0 * epoch,
                train_loss=float("nan") if bad else 1.0, train_accuracy=test - 0.1, test_loss=1.0, test_accuracy=test,
                images_per_second=120.0, rate=0.1, global_batch=96, rehearsed=True, diverged=bad,
            )
        )  # fmt: skip


def test_a_row_is_the_mean_of_the_seeds_that_did_not_diverge(tmp_path: Path) -> None:
    recipe = Recipe(workers=4, batch=24, epochs=3)
    places = [tmp_path / "runs" / f"naive-seed{seed}" for seed in range(4)]
    for seed, (place, test) in enumerate(zip(places, (0.7, 0.8, 0.9, 0.1), strict=True)):
        made_run(place, recipe.change(seed=seed), 3 if seed < 3 else 1, diverged=seed == 3, test=test)
    one = Condition("naive", "nothing changed", recipe)
    row = summarise(one, tmp_path, list(enumerate(places)), rehearsed=True)
    assert row is not None
    assert row.test_accuracy == pytest.approx(0.8) and row.test_accuracy_spread == pytest.approx(0.1)
    assert row.train_accuracy == pytest.approx(0.7) and row.train_accuracy_spread == pytest.approx(0.1)
    assert (row.updates, row.epochs, row.global_batch, row.seconds) == (30, 3, 96, pytest.approx(6.0))
    assert row.images_per_second == pytest.approx(120.0) and row.diverged == 1 and row.seeds == (0, 1, 2, 3)
    assert row.runs[0] == "runs/naive-seed0" and row.rehearsed
    lone = summarise(one, tmp_path, [(0, places[0])], rehearsed=True)
    assert lone is not None and lone.test_accuracy_spread is None
    gone = summarise(one, tmp_path, [(3, places[3])], rehearsed=True)
    assert gone is not None and gone.test_accuracy is None and gone.diverged == 1 and gone.updates == 10
    assert summarise(one, tmp_path, [], rehearsed=True) is None


def test_seeds_of_unequal_length_have_their_mean_and_range(tmp_path: Path) -> None:
    """AdaScale ends by its own clock, at another update for each seed; here the first is neither mean nor extreme."""
    recipe = Recipe(workers=4, batch=24, epochs=3, adascale=True)
    places = [tmp_path / f"adascale-seed{seed}" for seed in range(3)]
    for seed, (place, epochs) in enumerate(zip(places, (5, 3, 10), strict=True)):
        made_run(place, recipe.change(seed=seed), epochs)
    row = summarise(Condition("adascale", "", recipe), tmp_path, list(enumerate(places)), rehearsed=True)
    assert row is not None
    assert (row.updates, row.updates_range, row.epochs, row.epochs_range) == (60, (30, 100), 6, (3, 10))
    study = Study(task="clouds", workers=4, epochs=3, rows=(row,))
    assert Study.from_json(study.to_json()).rows == (row,)
    told = " ".join(str(cell) for cell in table_of(study).rows[0])
    assert "60 (30 to 100)" in told and "adascale (3 to 10 epochs)" in told
    assert other_lengths(study).startswith(
        "adascale ended at the end of its own clock, after 3 to 10 epochs instead of 3"
    )
    alike = summarise(Condition("adascale", "", recipe), tmp_path, [(0, places[0])], rehearsed=True)
    assert alike is not None and (alike.updates, alike.updates_range, alike.epochs_range) == (50, None, None)


def test_a_finished_run_is_known_from_its_own_files(tmp_path: Path) -> None:
    recipe = Recipe(workers=4, epochs=3)
    assert not is_finished(tmp_path / "absent", recipe)
    cases: dict[str, tuple[int, bool, bool]] = {
        "whole": (3, False, True), "half": (2, False, False), "diverged": (2, True, True),
    }  # fmt: skip
    for name, (epochs, diverged, finished) in cases.items():
        made_run(tmp_path / name, recipe, epochs, diverged=diverged)
        assert is_finished(tmp_path / name, recipe) is finished, name
    assert not is_finished(tmp_path / "whole", recipe.change(rate=0.2))
    longer = recipe.change(keep_updates=True)  # four times the epochs
    made_run(tmp_path / "longer", longer, 3)
    assert not is_finished(tmp_path / "longer", longer)
    with open(tmp_path / "half" / "metrics.jsonl", "a") as stream:
        stream.write('{"kind": "epoch", "epo')  # torn by a kill
    assert not is_finished(tmp_path / "half", recipe)


def test_the_table_of_a_small_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = ["one-worker", "naive", "batch-norm + linear-warmup", "one-worker+batch-norm"]
    options: dict[str, Any] = {"epochs": 2, "folder": tmp_path, "progress": False}
    study = study_techniques(tiny_task(), 4, rows=rows, seeds=2, **options)
    assert [row.name for row in study.rows] == [
        "one-worker", "naive", "batch-norm+linear-warmup", "one-worker+batch-norm",
    ]  # fmt: skip
    assert [row.workers for row in study.rows] == [1, 4, 4, 1]
    assert [row.rehearsed for row in study.rows] == [False, True, True, False]
    assert [row.updates for row in study.rows] == [20, 4, 4, 20]
    assert all(row.seeds == (0, 1) and row.test_accuracy_spread is not None for row in study.rows)
    last = Run(tmp_path / "runs" / "naive-seed1").rows("epoch")[-1]
    naive, base = study.rows[1], study.rows[0]
    assert last.rehearsed and last.global_batch == naive.global_batch == 96
    assert naive.test_accuracy is not None and base.test_accuracy is not None
    assert naive.against_one_worker == pytest.approx(100 * (naive.test_accuracy - base.test_accuracy))
    assert Study.load(tmp_path) == study
    assert len(table_of(study).rows) == 4

    def never(*arguments: object, **settings: object) -> None:
        raise AssertionError("a finished row was run again")

    monkeypatch.setattr(rueda.train, "fit", never)
    assert study_techniques(tiny_task(), 4, rows=rows, seeds=2, **options).rows == study.rows
    # Fewer seeds and rows asked: what was measured stays.
    assert study_techniques(tiny_task(), 4, rows=["naive"], seeds=1, **options).row("one-worker") == base
    assert Study.load(tmp_path).row("naive") == naive


def test_a_row_that_diverges_is_a_result(tmp_path: Path) -> None:
    settings = ["rate=1e39"]
    study = study_techniques(
        tiny_task(), 4, rows=["naive+batch=6"], epochs=2, folder=tmp_path, settings=settings, progress=False
    )  # fmt: skip
    row = study.rows[0]
    assert (row.name, row.global_batch, row.runs) == ("naive+batch=6", 24, ("runs/naive+batch=6-seed0",))
    assert row.diverged == 1 and row.verdict == "diverged" and row.test_accuracy is None
    assert verdict(row) == "diverged" and verdict(replace(row, seeds=(0, 1))) == "diverged, 1 of 2"
    assert Study.load(tmp_path) == study


def test_default_rows_are_all_named_recipes_and_combinations() -> None:
    found, left_out = conditions(tiny_task(), Recipe(batch=24, epochs=4), 8)
    assert [one.name for one in found] == default_rows() and not left_out
    # A model without batch norm: rows that need it are left out, unless they were asked for.
    bare = replace(tiny_task(), model=lambda: network())
    found, left_out = conditions(bare, Recipe(batch=24, epochs=4), 8)
    rows = [name for name in default_rows() if "batch-norm" in name]
    assert len(found) + len(rows) == len(default_rows())
    assert len(left_out) == 1 and left_out[0].startswith(f"left out: {', '.join(rows)}: model.batch_norm = True")
    with pytest.raises(TaskError, match=r"row batch-norm: .*needs a model factory with a parameter batch_norm=False"):
        conditions(bare, Recipe(batch=24), 8, ["batch-norm"])
    # A factory that takes any argument and gives no batch norm for it: known before anything is trained.
    deaf = replace(tiny_task(), model=lambda **_: network())
    found, left_out = conditions(deaf, Recipe(batch=24, epochs=4), 8)
    assert [line.split(": ")[1] for line in left_out] == ["ghost-batch-norm, ghost-batch-norm+linear-warmup"]


def test_combinations_are_applied_one_after_the_other() -> None:
    both = condition("ghost-batch-norm+linear-warmup", Recipe(epochs=8), 8).recipe
    assert (both.ghost_batch, both.scaling, both.warmup_epochs, both.workers) == (32, "linear", 2.0, 8)
    with pytest.raises(RecipeError, match=r"row linear-scaling\+adascale-x: .*did you mean adascale"):
        condition("linear-scaling+adascale-x", Recipe(), 8)
    rare = condition("local-sgd+sync_every=64 + model.width=2", Recipe(), 8)
    assert (rare.recipe.sync_every, rare.recipe.model, rare.recipe.workers) == (64, {"width": 2}, 8)
    assert rare.summary.endswith("(Stich 2018); sync_every = 64; model.width = 2")


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown row": ({"rows": ["lamp"]}, "did you mean lamb?"),
    "a row with an unknown field": ({"rows": ["naive+bacth=3"]}, "row naive+bacth=3: "),
    "a row with workers of its own": ({"rows": ["workers=2"]}, "row workers=2: workers=2 is the same for all rows"),
    "no seeds": ({"seeds": 0}, "seeds: expected 1 or more, got 0"),
    "no workers": ({"workers": 0}, "workers: expected 1 or more, got 0"),
    "no jobs": ({"jobs": 0}, "jobs: expected 1 or more"),
    "no epochs": ({"epochs": 0}, "epochs: expected a positive number"),
    "an unknown field": ({"settings": ["bacth=3"]}, "did you mean batch?"),
    "no rows": ({"rows": []}, "rows: expected a named recipe or more, got []"),
    "one worker to confirm": ({"workers": 1, "confirm": True}, "--confirm runs the best row of many workers"),
    "no file to confirm": ({"confirm": True}, "workers can be started for a task by name or file only, got Task"),
    "a row for another model": (
        {"task": replace(tiny_task(), model=lambda **_: network()), "rows": ["naive", "ghost-batch-norm"]},
        "row ghost-batch-norm: ghost_batch needs a model with batch norm",
    ),
}


@pytest.mark.parametrize(("changes", "message"), BAD.values(), ids=BAD)
def test_mistakes(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    options = {"task": tiny_task(), "workers": 4, "folder": tmp_path / "study", "progress": False, **changes}
    with pytest.raises((RecipeError, TaskError, RunError)) as error:
        study_techniques(**options)
    assert message in str(error.value) and len(str(error.value).splitlines()) == 1
    assert not (tmp_path / "study").exists()


def test_a_folder_holds_one_study(tmp_path: Path) -> None:
    options: dict[str, Any] = {"rows": ["naive"], "folder": tmp_path, "progress": False}
    study_techniques(tiny_task(), 4, epochs=1, **options)
    for changes, message in (
        ({"task": replace(tiny_task(), name="other"), "epochs": 1}, "holds a study of task clouds"),
        ({"workers": 2, "epochs": 1}, "4 workers, 1 epochs, but now the request is task clouds, 2 workers"),
        ({"epochs": 2}, "choose another --folder"),
        (
            {"epochs": 1, "settings": ["rate=0.3"]},
            "was trained with rate = 0.1, but now the request is rate = 0.3; choose another",
        ),
    ):
        with pytest.raises(RunError, match=message):
            study_techniques(**{"task": tiny_task(), "workers": 4, **options, **changes})  # type: ignore[arg-type]


def start(tmp_path: Path, *, rows: list[str], seconds: float, epochs: int, jobs: int) -> subprocess.Popen[bytes]:
    task = tmp_path / "clouds.py"
    task.write_text(TASK.format(tests=str(Path(__file__).parents[1]), seconds=seconds))
    script = tmp_path / "study.py"
    script.write_text(STUDY.format(task=str(task), rows=rows, epochs=epochs, folder=str(tmp_path / "study"), jobs=jobs))
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, str(script)], env=environ, stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored in the background of a script
    )  # fmt: skip


def wait_until(condition: Any, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.02)


def is_free(folder: Path) -> bool:
    with contextlib.suppress(RunError), held(folder):
        return True
    return False


def epochs_of(folder: Path) -> list[Row]:
    return Run(folder).rows("epoch") if (folder / "metrics.jsonl").exists() else []


@pytest.mark.parametrize(
    ("number", "rows"),
    [(signal.SIGKILL, ["one-worker", "naive"]), (signal.SIGINT, ["naive"])],
    ids=["kill -9", "Ctrl-C"],
)
def test_interrupted_it_goes_on_where_it_stopped(number: signal.Signals, rows: list[str], tmp_path: Path) -> None:
    runs = tmp_path / "study" / "runs"
    first, second = runs / "one-worker-seed0", runs / "naive-seed0"
    # naive makes 2 updates of 4 workers in one group an epoch, and only these are slow: the signal comes before the end
    process = start(tmp_path, rows=rows, seconds=0.15, epochs=8, jobs=1)
    wait_until(lambda: len(epochs_of(second)) >= 2)
    process.send_signal(number)
    process.wait(60)
    assert len(Study.load(tmp_path / "study").rows) == len(rows) - 1  # written when the first run ended
    wait_until(lambda: is_free(second))  # what ran saves and ends with the study, also when that was killed
    before = epochs_of(second)
    time.sleep(1.0)  # two epochs' time passes and nothing is added
    assert epochs_of(second) == before and 2 <= len(before) < 8
    untouched = {file: file.stat().st_mtime_ns for file in first.rglob("*") if file.is_file()}
    study = study_techniques(tiny_task(), 4, rows=rows, epochs=8, folder=tmp_path / "study", progress=False)
    assert {file: file.stat().st_mtime_ns for file in first.rglob("*") if file.is_file()} == untouched
    after = epochs_of(second)
    assert [row.epoch for row in after] == list(range(1, 9))
    assert after[0] == before[0]  # its time included: it went on, it did not begin again
    whole = study_techniques(
        tiny_task(), 4, rows=["naive"], epochs=8, folder=tmp_path / "whole", progress=False
    )  # fmt: skip
    assert [row.name for row in study.rows] == rows
    assert study.rows[-1].test_accuracy == whole.rows[0].test_accuracy


def test_a_run_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    task = tmp_path / "clouds.py"
    task.write_text(
        TASK.format(tests=str(Path(__file__).parents[1]), seconds=0.0)
        + "\nfrom rueda.errors import DataError\n"
        + "def gone(*_):\n    raise DataError('the disk is gone')\n"
        + "def broken(batch_norm=False):\n    model = network(batch_norm=batch_norm)\n"
        + "    if batch_norm:\n        model.register_forward_hook(gone)\n    return model\n"
        + "task = replace(task, model=broken)\n"
    )
    with pytest.raises(RunError, match=r"1 of 2 runs failed \(batch-norm, seed 0: the disk is gone\)"):
        study_techniques(
            str(task), 4, rows=["batch-norm", "one-worker"], epochs=1, folder=tmp_path / "study", progress=False
        )  # fmt: skip
    assert [row.name for row in Study.load(tmp_path / "study").rows] == ["one-worker"]


def test_in_this_process_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = rueda.train.fit

    def fit(task: Any, recipe: Recipe, **more: Any) -> Any:
        if recipe.optimizer == "lamb":
            raise ValueError("no such\nthing")
        return real(task, recipe, **more)

    monkeypatch.setattr(rueda.train, "fit", fit)
    with pytest.raises(RunsFailed, match=r"1 of 2 runs failed \(lamb, seed 0: ValueError: no such thing\)") as error:
        study_techniques(tiny_task(), 4, rows=["lamb", "naive"], epochs=1, folder=tmp_path, progress=False)
    assert isinstance(error.value.__cause__, ValueError)
    assert [row.name for row in error.value.study.rows] == ["naive"] and error.value.study == Study.load(tmp_path)


@pytest.mark.parametrize("workers", [8, 64])
@pytest.mark.parametrize("name", ["batch-growth", "batch-norm+batch-growth"])
def test_the_control_of_growth_anneals_the_noise_alike(name: str, workers: int) -> None:
    """Noise goes with rate / batch: what growth does to the batch, the control does to the rate, at the same epochs."""
    base = Recipe(batch=64, epochs=12, rate=0.1, schedule="cosine")
    grown, control = (condition(row, base, workers).recipe for row in (name, control_of(name) or ""))
    assert (control.workers, control.batch, control.growth_factor, control.schedule) == (1, 64, None, "step")
    assert control.milestones == grown.milestones == (3.0, 6.0, 9.0) and control.model == grown.model
    assert grown.growth_factor is not None and control.decay == pytest.approx(1 / grown.growth_factor)
    assert control.decay ** len(control.milestones) == pytest.approx(1 / workers)
    assert control_of(name) in default_rows() and "decay" not in default_rows()


def test_a_batch_that_the_data_cannot_fill_is_refused_when_planned(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"row naive: .* 240 examples .* got '24 on each of 50 workers'"):
        study_techniques(tiny_task(), 50, rows=["one-worker", "naive"], folder=tmp_path, progress=False)
    assert not list(tmp_path.iterdir())


def test_a_name_leads_out_of_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    evil = replace(tiny_task(), name="../../../evil/[bold]x")
    study_techniques(evil, 2, rows=["naive"], epochs=1, progress=False)
    assert [one.name for one in tmp_path.iterdir()] == ["here"]
    assert [one.name for one in (tmp_path / "here" / "runs").iterdir()] == ["study-evil-bold-x-2"]


def test_what_ends_a_confirmation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = tmp_path / "clouds.py"
    task.write_text(TASK.format(tests=str(Path(__file__).parents[1]), seconds=0.0))
    run_jobs_here(monkeypatch)
    here, ended = jobs.run, [Exception()]

    def run(job: Any, *, workers: int = 1, show: bool = False) -> Any:
        if workers == 1:
            return here(job)
        raise ended[-1]

    monkeypatch.setattr(jobs, "run", run)
    options: dict[str, Any] = {"rows": ["naive"], "epochs": 1, "folder": tmp_path / "study", "progress": False}
    for error in (JobError("killed by SIGKILL", 137), DataError("the disk is gone")):
        ended.append(error)
        with pytest.raises(RunsFailed, match=rf"naive on 2 real workers failed \({error}\); look at") as failed:
            study_techniques(str(task), 2, confirm=True, **options)
        assert [row.name for row in failed.value.study.rows] == ["naive"]
    ended.append(Stopped(signal.SIGTERM))  # type: ignore[arg-type]
    with pytest.raises(Stopped):
        study_techniques(str(task), 2, confirm=True, **options)
    gone = {**options, "folder": tmp_path / "gone", "settings": ["rate=1e39"], "progress": True}
    study_techniques(str(task), 2, confirm=True, **gone)
    shown = capsys.readouterr().err
    assert "nothing to confirm: no row of 2 workers ended without diverging" in shown
    assert "naive, seed 0: diverged in the epoch that ended at update " in shown


def test_two_studies_do_not_write_into_one_folder(tmp_path: Path) -> None:
    with held(tmp_path / "study"), pytest.raises(RunError, match="written by another process"):
        study_techniques(tiny_task(), 2, rows=["naive"], folder=tmp_path / "study", progress=False)
    with held(tmp_path / "study"):  # let go by both
        pass


def test_a_task_without_accuracy_is_compared_by_its_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_jobs_here(monkeypatch)
    rows = ["one-worker", "naive", "linear-scaling"]
    found = study_techniques("linear", 2, rows=rows, epochs=2, folder=tmp_path, progress=False, tolerance=0.5)
    assert found.metric == LOSS and found.tolerance == 0.5 and found.unit == "examples"
    base, naive = found.row("one-worker"), found.row("naive")
    assert base is not None and naive is not None and base.test_accuracy is None and (base.value or 0) > 1
    assert naive.against_one_worker == LOSS.change(naive.value, base.value) and naive.verdict == "undecided"
    best = found.best()
    assert best is not None and best.name == "linear-scaling"  # the only remedy
    assert Study.load(tmp_path) == found
    shown = caption(found)
    assert "change of the test loss in percent against one worker; kept: the whole 90 %" in shown
    assert "interval (Welch) is at most 50 % higher" in shown
    assert "examples/s" in shown and "images" not in shown
    write_report(tmp_path, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "test loss" in page and "images/s" not in page and "points of" not in page
