"""Resume equals never stopped, bit for bit, for kills at random moments, on 1 and on 2 workers."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import rueda
from forked import forked
from harness import workers
from rueda.errors import CheckpointError, RuedaError, RunError
from rueda.files.lock import held
from rueda.records import Recipe, Run
from rueda.records.recipe.recipe import field_names
from rueda.train.checkpoint import latest_checkpoint, list_checkpoints
from rueda.train.recorder import Recorder
from rueda.train.resume import MAY_CHANGE
from rueda.train.update import Updater
from rueda.world import current
from tinytask import assert_same, network, parameters, tiny_task

NUM_KILLS = 10
RECIPE = Recipe(
    batch=12, epochs=8, rate=0.05, checkpoint_every=3, log_every=4, model={"dropout": 0.2, "batch_norm": True},
    optimizer="adam",
)  # fmt: skip


def final_state(folder: Path) -> dict[str, object]:
    found = latest_checkpoint(folder / "checkpoints")
    assert found is not None
    return found[1]


@contextlib.contextmanager
def disturbed(at: int, what: Callable[[], None]) -> Iterator[None]:
    """Let something happen just before an update, counted from 1."""
    original, calls = Updater.update, []

    def update(self: Updater, *args: object, **options: object) -> None:
        calls.append(1)
        if len(calls) == at:
            what()
        original(self, *args, **options)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Updater, "update", update)
        yield


def stop() -> None:
    raise RuntimeError("stop")


KILLER = """
import os, signal, sys, time, random
sys.path.insert(0, sys.argv[5])
import torch, rueda
from tinytask import tiny_task
from test_resume_recipe import RECIPE
folder, seed, num_kills, limit = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
random.seed(seed)
torch.set_num_threads(1)
kills = 0
while True:
    child = os.fork()          # torch is loaded already: a start costs nothing
    if child == 0:
        rueda.fit(tiny_task(), RECIPE, folder=folder, resume=True, progress=False)
        os._exit(0)
    if kills < num_kills:
        time.sleep(random.uniform(0.0, limit))
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    kills += os.WIFSIGNALED(status)
    if os.WIFEXITED(status):
        if os.WEXITSTATUS(status):
            sys.exit(os.WEXITSTATUS(status))
        if kills >= num_kills:
            break
        import shutil; shutil.rmtree(folder)    # it was faster than the killer: again from the start
print(kills)
"""


def test_killed_ten_times_at_random_moments(tmp_path: Path) -> None:
    begun = time.monotonic()
    rueda.fit(tiny_task(), RECIPE, folder=tmp_path / "whole", progress=False)
    seconds = time.monotonic() - begun
    (tmp_path / "test_resume_recipe.py").write_text(
        f"from rueda.records import Recipe\nRECIPE = Recipe.from_toml('''{RECIPE.to_toml()}''')\n"
    )
    words = [str(tmp_path / "killed"), "7", str(NUM_KILLS), str(max(0.05, 0.4 * seconds)), str(tmp_path)]
    with forked(KILLER, [{**os.environ, "OMP_NUM_THREADS": "1"}], *words) as (process,):
        status, out, err = process.wait()
    assert status == 0, err
    assert out.split() == [str(NUM_KILLS)]
    whole, killed = final_state(tmp_path / "whole"), final_state(tmp_path / "killed")
    for part in ("model", "optimizer", "loader", "random"):
        assert_same(whole[part], killed[part], part)
    rows, again = (
        [asdict(replace(row, seconds=0.0, images_per_second=0.0, figures={})) for row in Run(folder).rows()]
        for folder in (tmp_path / "whole", tmp_path / "killed")
    )
    for row, other in zip(rows, again, strict=True):
        for name, value in row.items():  # a mean over an epoch is summed in two parts: the last digit may differ
            assert other[name] == (pytest.approx(value, rel=1e-12) if isinstance(value, float) else value), name


@workers(2)
def test_two_workers_stopped_in_mid_epoch(tmp_path: Path) -> None:
    check_stopped_in_mid_epoch(tmp_path)


@workers(3)
def test_three_workers_stopped_in_mid_epoch(tmp_path: Path) -> None:
    """The order in which three numbers are added is that of a training that was never stopped."""
    check_stopped_in_mid_epoch(tmp_path)


def check_stopped_in_mid_epoch(tmp_path: Path) -> None:
    """An error stops all after 7 updates, after the checkpoint of the sixth; then they go on.

    Checkpoints in mid-epoch do not change the running statistics: the test loss is that of a training without any.
    """
    folder, recipe = tmp_path / "stopped", RECIPE.change(epochs=2, recalibrate="never")
    whole = rueda.fit(tiny_task(), recipe, progress=False)
    with disturbed(8, stop), pytest.raises(RuntimeError, match="stop"):
        rueda.fit(tiny_task(), recipe, folder=folder, progress=False)
    current().barrier()
    resumed = rueda.fit(tiny_task(), recipe, folder=folder, resume=True, progress=False)
    assert_same(dict(whole.model.state_dict()), dict(resumed.model.state_dict()))
    assert whole.row is not None and resumed.row is not None and whole.row.test_loss == resumed.row.test_loss


@workers(3)
def test_resume_on_another_number_of_workers(tmp_path: Path) -> None:
    """3 workers take up what 1 began; every example of the epoch is still seen, and the result is usable."""
    world = current()
    recipe = Recipe(batch=24, epochs=3, rate=0.1, precision="float64", checkpoint_every=4)
    folder = tmp_path / "run"
    if world.is_main:
        from rueda.train.loop import run_epochs
        from rueda.train.recorder import Recorder
        from rueda.train.training import Training
        from rueda.world import World

        with disturbed(15, stop), contextlib.suppress(RuntimeError):
            job = Training(tiny_task(), recipe, World())
            run_epochs(job, Recorder(job, Run(folder)))
    world.barrier()
    # A third of the batch each: the same global batches, so the same result as one worker that was never stopped.
    resumed = rueda.fit(tiny_task(), recipe.change(batch=8), folder=folder, resume=True, progress=False)
    from tinytask import run, training

    whole = run(training(tiny_task(), recipe, alone=True))
    assert resumed.row is not None and whole.row is not None and resumed.row.examples == whole.row.examples == 720
    assert torch.allclose(parameters(resumed.model), parameters(whole.model), rtol=1e-9, atol=1e-12)


@workers(2)
def train_larger(folder: Path, resume: bool) -> None:
    recipe = tiny_task().recipe.change(batch=4, epochs=3, checkpoint_every=10)
    rueda.fit(tiny_task(1200), recipe, folder=folder, resume=resume, progress=False)


SLOW_TASK = """
import sys, time
from dataclasses import replace
sys.path.insert(0, {tests!r})
from tinytask import network, tiny_task
def slow():
    model = network()
    model.register_forward_hook(lambda *_: time.sleep(0.02))
    return model
task = replace(tiny_task(1200), model=slow)
"""


def test_two_processes_killed_and_resumed(tmp_path: Path) -> None:
    """The real thing: `rueda train --workers 2`, kill -9 to the driver in mid-run; resumed, against never stopped.

    The training that is killed is a slow one, so that it has not ended when the signal comes; a step waits for nothing.
    """
    task, folder = tmp_path / "task.py", tmp_path / "killed"
    task.write_text(SLOW_TASK.format(tests=str(Path(__file__).parents[1])))
    command = [sys.executable, "-m", "rueda", "train", str(task), "--workers", "2", "--epochs", "3", "--json"]
    command += ["--set", "checkpoint_every=10", "--set", "batch=4", "--run", str(folder)]
    killed = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list((folder / "checkpoints").glob("step-*.pt")) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(random.Random(3).uniform(0.0, 0.3))
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    is_free = False
    while not is_free:  # the workers save and leave when they find the driver gone
        assert time.monotonic() < deadline
        time.sleep(0.05)
        with contextlib.suppress(RunError), held(folder):
            is_free = True
    assert len(Run(folder).rows("epoch")) < 3
    train_larger(folder=tmp_path / "whole", resume=False)
    train_larger(folder=folder, resume=True)
    assert_same(final_state(tmp_path / "whole")["model"], final_state(folder)["model"])


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


REFUSED = {
    "another optimizer": ({}, {"optimizer": "lamb"}, "optimizer = 'adam', but now the request is optimizer = 'lamb'"),
    "another model": (
        {},
        {"model": {}},
        "model = {'dropout': 0.2, 'batch_norm': True}, but now the request is model = {}",
    ),
    "another seed": ({}, {"seed": 5, "rate": 0.2}, "seed = 0, but now the request is seed = 5"),
    "another task of the same shapes": ({"name": "fog"}, {}, "trained on task clouds, but now the request is fog"),
}


@pytest.mark.parametrize(("of_task", "of_recipe", "message"), REFUSED.values(), ids=REFUSED)
def test_what_may_not_change_is_refused_and_nothing_written(
    of_task: dict[str, Any], of_recipe: dict[str, Any], message: str, tmp_path: Path
) -> None:
    rueda.fit(tiny_task(), RECIPE.change(epochs=1), folder=tmp_path, progress=False)
    before = contents(tmp_path)
    with pytest.raises(RunError) as caught:
        rueda.fit(
            replace(tiny_task(), **of_task), RECIPE.change(epochs=2, **of_recipe), folder=tmp_path, resume=True,
            progress=False,
        )  # fmt: skip
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert contents(tmp_path) == before


def test_the_checkpoint_of_a_loop_of_ones_own_is_refused(tmp_path: Path) -> None:
    rueda.Checkpoint(tmp_path / "checkpoints", model=network()).save(3)
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match="expected a checkpoint of rueda train, got one of another program"):
        rueda.fit(tiny_task(), RECIPE, folder=tmp_path, resume=True, progress=False)
    assert contents(tmp_path) == before


def test_what_may_change_applies(tmp_path: Path) -> None:
    assert set(field_names()) > MAY_CHANGE > {"epochs", "workers", "rate", "log_every"}
    rueda.fit(tiny_task(), RECIPE.change(epochs=1), folder=tmp_path, progress=False)
    changed = RECIPE.change(epochs=2, betas=(0.5, 0.9), weight_decay=0.1, on_divergence="skip", keep=1, log_every=None)
    rueda.fit(tiny_task(), changed, folder=tmp_path, resume=True, progress=False)
    groups: Any = final_state(tmp_path)["optimizer"]
    assert [tuple(group["betas"]) for group in groups["param_groups"]] == 2 * [(0.5, 0.9)]
    assert {group["weight_decay"] for group in groups["param_groups"]} == {0.1, 0.0}
    assert Run(tmp_path).recipe() == changed and len(list_checkpoints(tmp_path / "checkpoints")) == 1


def test_a_damaged_file_of_rows_leaves_the_run_as_it_was(tmp_path: Path) -> None:
    rueda.fit(tiny_task(), RECIPE.change(epochs=1), folder=tmp_path, progress=False)
    (tmp_path / "metrics.jsonl").write_text("nonsense\n{}\n")
    before = contents(tmp_path)
    with pytest.raises(RunError, match="line 1: expected a JSON row"):
        rueda.fit(tiny_task(), RECIPE.change(rate=0.2), folder=tmp_path, resume=True, progress=False)
    assert contents(tmp_path) == before


def damage(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


@pytest.mark.filterwarnings("ignore:.*it is skipped:RuntimeWarning")
def test_all_checkpoints_damaged_is_refused_and_best_is_a_copy(tmp_path: Path) -> None:
    whole = rueda.fit(tiny_task(), RECIPE.change(epochs=4), progress=False)
    rueda.fit(tiny_task(), RECIPE.change(epochs=2), folder=tmp_path, progress=False)
    for file in list_checkpoints(tmp_path / "checkpoints"):
        damage(file)
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match=r"all 2 checkpoints are damaged; resume from the best one") as caught:
        rueda.fit(tiny_task(), RECIPE.change(epochs=4), folder=tmp_path, resume=True, progress=False)
    assert "\n" not in str(caught.value) and contents(tmp_path) == before
    resumed = rueda.fit(
        tiny_task(), RECIPE.change(epochs=4), folder=tmp_path, resume=True, resume_from="best", progress=False
    )
    assert torch.equal(parameters(resumed.model), parameters(whole.model))
    assert [row.epoch for row in Run(tmp_path).rows("epoch")] == [1, 2, 3, 4]
    assert len(list_checkpoints(tmp_path / "checkpoints")) == 2 and latest_checkpoint(tmp_path / "checkpoints")


@workers(2)
def test_each_machine_has_its_own_disk(tmp_path: Path) -> None:
    """Only rank 0's disk holds the run; rank 1's holds an older one: both continue from rank 0's."""
    world = current()
    folder, recipe = tmp_path / f"disk{world.rank}" / "run", RECIPE.change(epochs=1, checkpoint_every=None)
    whole = rueda.fit(tiny_task(), recipe.change(epochs=3), progress=False)
    rueda.fit(tiny_task(), recipe.change(epochs=2), folder=folder, progress=False)
    assert folder.exists() == world.is_main
    if not world.is_main:
        folder.mkdir(parents=True)
        recipe.change(rate=0.7).save(folder / "recipe.toml")
    given = recipe.change(epochs=3) if world.is_main else recipe.change(rate=0.7)
    resumed = rueda.fit(tiny_task(), given, folder=folder, resume=True, progress=False)
    assert resumed.row is not None and resumed.row.step == 30
    assert_same(dict(whole.model.state_dict()), dict(resumed.model.state_dict()))
    assert world.is_main or [file.name for file in folder.iterdir()] == ["recipe.toml"]
    if world.is_main:
        for file in (folder / "checkpoints").iterdir():
            damage(file)
    with warnings.catch_warnings(), pytest.raises(RuedaError, match="all 2 checkpoints are damaged"):
        warnings.simplefilter("ignore")
        rueda.fit(tiny_task(), given, folder=folder, resume=True, progress=False)


def test_one_process_writes_a_run(tmp_path: Path) -> None:
    """While one trains, another is refused; the lock is free again after an error and at the end."""

    def other() -> None:
        with pytest.raises(RunError, match="is being written by another process"):
            rueda.fit(tiny_task(), RECIPE, folder=tmp_path, resume=True, progress=False)
        stop()

    with disturbed(4, other), pytest.raises(RuntimeError, match="stop"):
        rueda.fit(tiny_task(), RECIPE, folder=tmp_path, progress=False)
    assert rueda.fit(tiny_task(), RECIPE, folder=tmp_path, resume=True, progress=False).status == "finished"


def test_a_row_whose_checkpoint_was_not_written_is_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the row of an epoch and its checkpoint, when the same step has an earlier one already."""
    whole = rueda.fit(tiny_task(), RECIPE.change(epochs=2), folder=tmp_path / "whole", progress=False)
    original = Recorder.save

    def save(self: Recorder, **options: Any) -> None:
        if "best" in options:
            stop()
        original(self, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "save", save)
        with pytest.raises(RuntimeError, match="stop"):
            rueda.fit(tiny_task(), RECIPE.change(epochs=2, checkpoint_every=20), folder=tmp_path / "a", progress=False)
    recipe = RECIPE.change(epochs=2, checkpoint_every=20)
    resumed = rueda.fit(tiny_task(), recipe, folder=tmp_path / "a", resume=True, progress=False)
    assert [row.epoch for row in Run(tmp_path / "a").rows("epoch")] == [1, 2]
    assert torch.equal(parameters(whole.model), parameters(resumed.model))


def test_ctrl_c_saves_and_resume_goes_on(tmp_path: Path) -> None:
    whole = rueda.fit(tiny_task(), RECIPE, progress=False)
    with disturbed(11, lambda: os.kill(os.getpid(), signal.SIGINT)):
        stopped = rueda.fit(tiny_task(), RECIPE, folder=tmp_path, progress=False)
    assert stopped.status == "interrupted" and stopped.signal == signal.SIGINT
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    resumed = rueda.fit(tiny_task(), RECIPE, folder=tmp_path, resume=True, progress=False)
    assert torch.equal(parameters(whole.model), parameters(resumed.model))


def test_an_interrupted_step_is_saved_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[int] = []

    def save(*given: object, step: int, **more: object) -> None:
        saved.append(step)

    monkeypatch.setattr("rueda.train.saving.save_checkpoint", save)
    with disturbed(5, lambda: os.kill(os.getpid(), signal.SIGINT)):
        stopped = rueda.fit(tiny_task(), RECIPE.change(checkpoint_every=1), folder=tmp_path, progress=False)
    assert stopped.status == "interrupted" and saved == list(range(1, saved[-1] + 1))


def test_an_ignored_ctrl_c_stays_ignored_and_termination_does_not() -> None:
    def both() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with disturbed(3, both):
            stopped = rueda.fit(tiny_task(), RECIPE, progress=False)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert stopped.status == "interrupted" and stopped.signal == signal.SIGTERM


@workers(2)
def test_a_checkpoint_by_the_clock_is_agreed(tmp_path: Path) -> None:
    """Rank 0's clock decides: with no minute at all, each comparison gives one; the training is the same."""
    recipe = RECIPE.change(epochs=1, checkpoint_every=None)
    whole = rueda.fit(tiny_task(), recipe, progress=False)
    saved: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        original = Recorder.save

        def save(self: Recorder, **options: Any) -> None:
            saved.append(self.training.state.step)
            original(self, **options)

        patch.setattr(Recorder, "save", save)
        minutes = recipe.change(checkpoint_minutes=1e-9)
        timed = rueda.fit(tiny_task(), minutes, folder=tmp_path / "run", progress=False)
    assert saved[0] == 1 and saved[-1] == 10 and len(set(map(tuple, current().all_gather_object(saved)))) == 1
    assert_same(dict(whole.model.state_dict()), dict(timed.model.state_dict()))
