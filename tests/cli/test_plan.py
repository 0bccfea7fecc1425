"""``rueda plan`` as a user meets it."""

from __future__ import annotations

import errno
import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from commandline import rueda, settle_in
from plan.profiles import RECIPE, line, noise, profile, step
from rueda.measure.request import Budget
from rueda.records import Recipe, Row, Run
from rueda.records.plan import Plan

MEASURED = profile(
    [step(16, 0.020), step(64, 0.064), step(256, 0.220)], communication=(line(2, 1e-3, 1e9),), noise=(noise(800),),
    contention=1.1, overlap=1.0,
)  # fmt: skip
LITTLE = Budget(steps=0.1, communication=0.1, together=0.1, noise=0.0, longest_step=0.5, sizes=(4, 4096))


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    MEASURED.save(tmp_path / "profile.json")


def run_folder(name: str, *, workers: int = 2, images_per_second: float = 1000.0, diverged: bool = False) -> Path:
    run = Run(Path(name))
    run.begin(RECIPE.change(workers=workers), "glyphs-cnn")
    for epoch in (1, 2, 3):
        run.append(
            Row(
                kind="epoch",
                epoch=epoch,
                step=468 * epoch,
                examples=468 * 128 * epoch,
                seconds=60.0 * epoch,
                train_loss=None if diverged else 0.3,
                train_accuracy=0.9,
                test_accuracy=0.8 + epoch / 100,
                images_per_second=images_per_second,
                rate=0.05,
                global_batch=128,
                diverged=diverged,
            )
        )
    return run.folder


def test_the_table_the_advice_the_recipe_and_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("plan", "profile.json", "--workers", "1,2,4,8,16,64,512", "--cluster", "dgx-h100", "--speed", "50")
    assert rueda(*words, "--html", "plan.html", "--recipe-output", "out/planned.toml") == 0
    shown = capsys.readouterr().out
    assert "* recommended" in shown and "USD" in shown and "not known:" in shown and "Take " in shown
    plan = Plan.load(Path("out", "plan.json"))
    assert sorted({row.workers for row in plan.rows}) == [1, 2, 4, 8, 16, 64, 512]
    recipe = Recipe.load(Path("out", "planned.toml"))
    assert recipe.workers == plan.chosen.workers and recipe.batch == plan.chosen.local_batch
    assert {"workers", "batch", "rate"} <= set(recipe.reasons)
    page = Path("plan.html").read_text()
    assert "Efficiency against workers" in page and "Time to the target" in page


def test_failures_as_asked(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("plan", "profile.json", "--workers", "1024", "--cluster", "dgx-a100", "--speed", "50", "--hours", "24")
    assert rueda(*words, "--checkpoint-seconds", "60") == 0
    out = capsys.readouterr().out
    assert (
        "Failures in 24 h on 128 nodes, one every 29 h" in out and "Spare nodes" in out and "Daly 2006: 58 min" in out
    )
    assert Recipe.load(Path("planned.toml")).checkpoint_minutes == 58
    options = ("--mtbf-hours", "1011", "--recover-seconds", "100", "--spares", "5", "--elastic", "--json")
    assert rueda(*words, "--checkpoint-seconds", "60", *options) == 0
    found = Plan.from_json(capsys.readouterr().out).failures
    assert found is not None and found.job.job_mtbf_seconds == pytest.approx(7.9 * 3600, rel=1e-3)
    assert (found.job.recover_seconds, found.spares, found.elastic, found.source) == (100, 5, True, "as given")
    assert rueda("plan", "--workers", "2") == 0
    assert "ailure" not in capsys.readouterr().out
    assert rueda("plan", "--workers", "2", "--mtbf-hours", "100") == 0
    assert "Failures of 1 node, mean time between failures of each 100 h (as given)" in capsys.readouterr().out


def test_a_former_plan_is_kept_unless_it_is_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert rueda("plan", "--workers", "2") == 0
    first, time = Path("planned.toml").read_bytes(), Path("plan.json").stat().st_mtime_ns
    assert rueda("plan", "--workers", "2", "--recipe-output", "./planned.toml") == 0  # another command, the same plan
    assert "kept" not in capsys.readouterr().out and Path("plan.json").stat().st_mtime_ns > time
    assert rueda("plan", "--workers", "1") == 0
    assert "the former plan is kept: planned.1.toml, plan.1.json\n" in capsys.readouterr().out
    assert Path("planned.1.toml").read_bytes() == first != Path("planned.toml").read_bytes()
    assert Plan.load("plan.1.json").recipe.encode() == first
    Path("planned.toml").write_text("batch = 8  # by hand\n")
    assert rueda("plan", "--workers", "1", "--json") == 0  # the same plan, but the recipe was edited
    assert Path("planned.2.toml").read_text() == "batch = 8  # by hand\n" and Path("plan.2.json").exists()
    assert Plan.from_json(capsys.readouterr().out).recipe == Path("planned.toml").read_text()


def test_the_next_command_works_for_a_task_file(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Measure a task file, plan, and run the printed command, from another directory as well."""
    folder = tmp_path / "my tasks"
    folder.mkdir()
    settle_in(folder, monkeypatch)
    monkeypatch.setattr("rueda.measure.request.QUICK", LITTLE)
    assert rueda("measure", "clouds.py", "--quick", "--workers", "1", "--batches", "8,24") == 0
    shown = capfd.readouterr().out.splitlines()[-1].removeprefix("next: rueda ")
    assert rueda(*shlex.split(shown)) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "next: rueda train clouds.py --recipe planned.toml"
    monkeypatch.chdir(tmp_path)
    assert rueda("plan", "my tasks/profile.json", "--workers", "1") == 0
    command = capfd.readouterr().out.splitlines()[-1].removeprefix("next: rueda ")
    assert command == "train 'my tasks/clouds.py' --recipe planned.toml"
    assert rueda(*shlex.split(command), "--run", "run") == 0
    assert Run("run").recipe().reasons.keys() >= {"batch"} and Run("run").rows("epoch")


def test_the_next_step_of_a_profile_that_a_users_own_loop_made(capsys: pytest.CaptureFixture[str]) -> None:
    """`rueda train mine` cannot work: nothing defines the task, which only a training script knows."""
    replace(MEASURED, task="mine").save(Path("profile.json"))
    assert rueda("plan", "--workers", "2") == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "next: use the values of planned.toml in your training script, then: rueda run -np 2 python SCRIPT"
    replace(MEASURED, task="mine", communication=()).save(Path("profile.json"))
    assert rueda("plan", "--workers", "2") == 2
    assert "measure_communication() in your own loop" in capsys.readouterr().err


def test_a_file_that_is_no_plan_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    Path("plan.json").write_text("a holiday")
    assert rueda("plan") == 0
    assert "the former plan is kept: plan.1.json\n" in capsys.readouterr().out
    assert Path("plan.1.json").read_text() == "a holiday"


def test_a_recipe_that_cannot_be_written(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert rueda("plan", "--recipe-output", "out/plan.json") == 2 and not Path("out").exists()
    assert capsys.readouterr().err.endswith("out/plan.json: this is the plan itself; name the recipe otherwise\n")
    assert rueda("plan", "--workers", "2") == 0

    def refuse(file: Path, to: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(file))

    monkeypatch.setattr(Path, "rename", refuse)
    assert rueda("plan", "--workers", "1") == 2
    line = "rueda: cannot rename planned.toml: Read-only file system; use another --recipe-output\n"
    assert capsys.readouterr().err == line


def test_json_is_the_plan_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert rueda("plan", "--workers", "1,2", "--json") == 0
    assert Plan.from_json(capsys.readouterr().out) == Plan.load(Path("plan.json"))


def test_the_clusters_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert rueda("plan", "--cluster", "list") == 0
    assert "dgx-h100" in capsys.readouterr().out


def test_a_run_against_its_prediction(capsys: pytest.CaptureFixture[str]) -> None:
    folder = run_folder("run", images_per_second=1700.0)
    assert rueda("plan", "--from-run", str(folder)) == 0
    shown = capsys.readouterr().out
    # 128 examples in 64 ms x 1.1 + 1 ms + 4 MB / (1 GB/s)
    assert f"{128 / (0.0704 + 0.001 + 0.004):,.0f}" in shown and "1,700" in shown and "1.00" in shown
    assert "81.0 82.0 83.0" in shown
    assert rueda("plan", "--from-run", str(folder), "--json") == 0
    figures = {one["name"]: one for one in json.loads(capsys.readouterr().out)["figures"]}
    assert figures["updates"]["predicted"] == figures["updates"]["measured"] == 3 * 468


def test_a_rehearsed_run_has_no_speed(capsys: pytest.CaptureFixture[str]) -> None:
    folder = run_folder("run", workers=8)
    about = json.loads((folder / "environment.json").read_text())
    (folder / "environment.json").write_text(json.dumps({**about, "rehearsed": True}))
    assert rueda("plan", "--from-run", str(folder), "--json") == 0
    figures = {one["name"]: one["measured"] for one in json.loads(capsys.readouterr().out)["figures"]}
    assert figures["images/s"] is None and figures["training time"] is None and figures["updates"] == 1404


MISTAKES = {
    "no profile": (["none.json"], "none.json: expected a profile, got: "),
    "a broken profile": (["broken.json"], "broken.json: expected JSON, got: "),
    "a profile without steps": (["empty.json"], "profile.steps: expected at least one measured batch, got []"),
    "no workers": (["--workers", "0"], "workers: expected numbers of 1 or more, got '0'"),
    "workers that are words": (
        ["--workers", "many"],
        "expected whole numbers, separated by commas, got 'many'",
    ),
    "an unknown cluster": (["--cluster", "dgx-h10"], "did you mean dgx-h100?"),
    "a cluster without links": (["--cluster", "bare.toml"], "expected a link between the devices of a node, got none"),
    "no epochs": (["--epochs", "0"], "epochs: expected a positive number, got 0"),
    "a speed of this very machine": (["--speed", "2"], "--speed compares another cluster's device"),
    "workers of a run": (["--from-run", "run", "--workers", "4"], "leave --workers out"),
    "a page of a run": (["--from-run", "run", "--html", "page.html"], "leave --html out"),
    "no speed": (["--cluster", "dgx-h100", "--speed", "0"], "speed: expected more than 0 and finite, got 0.0"),
    "failures all the time": (["--mtbf-hours", "0"], "failures: mtbf_hours: expected more than 0 and finite, got 0.0"),
    "a checkpoint in no time": (["--checkpoint-seconds", "0"], "failures: checkpoint_seconds: expected more than 0"),
    "a negative recovery": (["--recover-seconds", "-1"], "failures: recover_seconds: expected 0 or more"),
    "negative spares": (["--spares", "-1"], "failures: spares: expected 0 or more and finite, got -1"),
    "no hours": (["--hours", "0"], "hours: expected more than 0 and finite, got 0.0"),
    "failures of a run": (["--from-run", "run", "--mtbf-hours", "9"], "leave --mtbf-hours out"),
    "a diverged run": (["--from-run", "diverged"], "diverged: the run diverged in the epoch that ended at update 1404"),
    "no run": (["--from-run", "nowhere"], "expected a run folder with environment.json"),
}


@pytest.mark.parametrize(("words", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_gets_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken.json").write_text("{")
    data = json.loads(MEASURED.to_json())
    Path("empty.json").write_text(json.dumps({**data, "steps": []}))
    Path("bare.toml").write_text("devices_per_node = 8\n")
    run_folder("diverged", diverged=True)
    assert rueda("plan", *words) == 2
    shown = capsys.readouterr()
    assert message in shown.err and len(shown.err.splitlines()) == 1 and shown.out == ""
    assert not Path("planned.toml").exists()
