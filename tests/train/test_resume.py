"""Resume equals never stopped, bit for bit, for kills at random moments, on 1 and on 2 workers."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

import rueda
from harness import workers
from rueda.errors import CheckpointError
from rueda.records import Recipe, Run
from rueda.train.checkpoint import latest_checkpoint
from rueda.train.update import Updater
from rueda.world import current
from tinytask import parameters, tiny_task

NUM_KILLS = 10
RECIPE = Recipe(
    batch=12, epochs=8, rate=0.05, checkpoint_every=3, log_every=4, model={"dropout": 0.2, "batch_norm": True},
    optimizer="adam",
)  # fmt: skip


def final_state(folder: Path) -> dict[str, object]:
    found = latest_checkpoint(folder / "checkpoints")
    assert found is not None
    return found[1]


def assert_same(first: object, second: object, where: str = "state") -> None:
    if isinstance(first, torch.Tensor):
        assert isinstance(second, torch.Tensor) and torch.equal(first, second), where
    elif isinstance(first, dict):
        assert isinstance(second, dict) and first.keys() == second.keys(), where
        for key in first:
            assert_same(first[key], second[key], f"{where}.{key}")
    elif isinstance(first, list):
        assert isinstance(second, list) and len(first) == len(second), where
        for index, (one, other) in enumerate(zip(first, second, strict=True)):
            assert_same(one, other, f"{where}[{index}]")
    else:
        assert first == second, where


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
sys.path.insert(0, {tests!r})
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
    done = subprocess.run(
        [sys.executable, "-c", KILLER.format(tests=str(Path(__file__).parents[1])), str(tmp_path / "killed"), "7",
         str(NUM_KILLS), str(max(0.05, 0.4 * seconds))],
        text=True, capture_output=True, timeout=300,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(NUM_KILLS)]
    whole, killed = final_state(tmp_path / "whole"), final_state(tmp_path / "killed")
    for part in ("model", "optimizer", "loader", "random"):
        assert_same(whole[part], killed[part], part)
    rows, again = (
        [asdict(replace(row, seconds=0.0, images_per_second=0.0)) for row in Run(folder).rows()]
        for folder in (tmp_path / "whole", tmp_path / "killed")
    )
    for row, other in zip(rows, again, strict=True):
        for name, value in row.items():  # a mean over an epoch is summed in two parts: the last digit may differ
            assert other[name] == (pytest.approx(value, rel=1e-12) if isinstance(value, float) else value), name


@workers(2)
def test_two_workers_stopped_in_mid_epoch(tmp_path: Path) -> None:
    """An error stops both after 7 updates, after the checkpoint of the sixth; then they go on."""
    folder = tmp_path / "stopped"
    whole = rueda.fit(tiny_task(), RECIPE.change(epochs=2), progress=False)
    with disturbed(8, stop), pytest.raises(RuntimeError, match="stop"):
        rueda.fit(tiny_task(), RECIPE.change(epochs=2), folder=folder, progress=False)
    current().barrier()
    resumed = rueda.fit(tiny_task(), RECIPE.change(epochs=2), folder=folder, resume=True, progress=False)
    assert torch.equal(parameters(whole.model), parameters(resumed.model))


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
def train_larger(folder: Path) -> None:
    recipe = tiny_task().recipe.change(batch=4, epochs=3, checkpoint_every=10)
    rueda.fit(tiny_task(1200), recipe, folder=folder, progress=False)


def test_two_processes_killed_and_resumed(tmp_path: Path) -> None:
    """The real thing: `rueda train --workers 2`, kill -9 to the driver in mid-run, --resume; against never stopped."""
    task = tmp_path / "task.py"
    task.write_text(
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
        "from tinytask import tiny_task\ntask = tiny_task(1200)\n"
    )
    command = [sys.executable, "-m", "rueda", "train", str(task), "--workers", "2", "--epochs", "3", "--json"]
    command += ["--set", "checkpoint_every=10", "--set", "batch=4", "--run", str(tmp_path / "killed")]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    killed = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL)
    checkpoints = tmp_path / "killed" / "checkpoints"
    deadline = time.monotonic() + 60
    while not list(checkpoints.glob("step-*.pt")) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(random.Random(3).uniform(0.0, 0.3))
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert len(Run(tmp_path / "killed").rows("epoch")) < 3
    train_larger(folder=tmp_path / "whole")
    subprocess.run([*command, "--resume"], env=environ, check=True, timeout=120, stdout=subprocess.DEVNULL)
    assert_same(final_state(tmp_path / "whole")["model"], final_state(tmp_path / "killed")["model"])


def test_a_checkpoint_of_another_model(tmp_path: Path) -> None:
    rueda.fit(tiny_task(), RECIPE.change(epochs=1), folder=tmp_path, progress=False)
    with pytest.raises(CheckpointError, match="does not fit task clouds") as caught:
        rueda.fit(tiny_task(), RECIPE.change(epochs=2, model={}), folder=tmp_path, resume=True, progress=False)
    assert "\n" not in str(caught.value)


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

    monkeypatch.setattr("rueda.train.recorder.save_checkpoint", save)
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
