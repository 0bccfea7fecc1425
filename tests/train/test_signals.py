"""Signals during a training: what is saved, what goes on, what is said."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import rueda
from harness import workers
from rueda.jobs import Stopped
from rueda.records import Recipe, Run
from rueda.train.request import SCRATCH_PREFIX
from rueda.train.update import Updater
from rueda.world import current
from rueda.world.signals import SignalFilter
from tinytask import network, tiny_task

RECIPE = Recipe(batch=12, epochs=2, rate=0.05, keep=100)


@contextlib.contextmanager
def before_updates(what: dict[int, Callable[[], None]]) -> Iterator[None]:
    """Let something happen just before some updates, counted from 1."""
    original, calls = Updater.update, []

    def update(self: Updater, *args: object, **options: object) -> None:
        calls.append(1)
        what.get(len(calls), lambda: None)()
        original(self, *args, **options)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Updater, "update", update)
        yield


def send(*numbers: int) -> Callable[[], None]:
    def kill() -> None:
        for number in numbers:
            os.kill(os.getpid(), number)

    return kill


def saved_steps(folder: Path) -> list[int]:
    return sorted(int(file.name[5:].split(".")[0]) for file in (folder / "checkpoints").glob("step-*.pt"))


STOPS = {
    "Ctrl-C": ([signal.SIGINT], signal.SIGINT, 130),
    "a held Ctrl-C": ([signal.SIGINT] * 3, signal.SIGINT, 130),
    "scancel, and the launcher's copy of it": ([signal.SIGTERM] * 3, signal.SIGTERM, 143),
    "a closed terminal": ([signal.SIGHUP], signal.SIGHUP, 129),
    "systemd": ([signal.SIGTERM, signal.SIGHUP, signal.SIGINT], signal.SIGTERM, 143),
    "before Slurm's time limit": ([signal.SIGUSR2], signal.SIGUSR2, 75),
}


@pytest.mark.parametrize(("numbers", "first", "status"), STOPS.values(), ids=STOPS)
def test_a_signal_saves_and_stops(
    numbers: list[int], first: int, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with before_updates({5: send(*numbers)}):
        stopped = rueda.fit(tiny_task(), RECIPE.change(checkpoint_every=1), folder=tmp_path, progress=False)
    assert stopped.status == "interrupted" and stopped.signal == first and Stopped(first).exit_status == status
    assert saved_steps(tmp_path)[-1] == 5
    assert capsys.readouterr().err == "saved at step 5; go on with --resume\n"


def stopped_in_the_evaluation(folder: Path, number: int, *, rank: int = 0) -> rueda.Result:
    """A training that a signal to one worker stops while the first batch of its second evaluation is computed."""
    calls: list[int] = []

    def metric(outputs: Tensor, targets: Tensor) -> Tensor:
        if torch.is_inference_mode_enabled():
            calls.append(1)
            if len(calls) == num_batches + 1 and current().rank == rank:
                os.kill(os.getpid(), number)
        return outputs.argmax(dim=1) == targets

    task, share = normalised_task(), -(-101 // current().size)
    num_batches = -(-share // 4)
    result = rueda.fit(replace(task, metric=metric), EVALUATED, folder=folder, progress=False)
    assert num_batches > 1 and (number == signal.SIGUSR1 or len(calls) < 2 * num_batches)
    return result


def normalised_task() -> rueda.Task:
    return replace(tiny_task(num_test=101), model=lambda: network(dropout=0.1, batch_norm=True))


EVALUATED = RECIPE.change(epochs=3, evaluation_batch=4)


@workers(2)
def test_a_signal_in_a_long_evaluation_is_obeyed_between_its_batches_by_all(tmp_path: Path) -> None:
    assert_stops_between_batches(tmp_path)


def test_a_signal_in_a_long_evaluation_is_obeyed_between_its_batches(tmp_path: Path) -> None:
    assert_stops_between_batches(tmp_path)


def assert_stops_between_batches(tmp_path: Path) -> None:
    """The epoch is evaluated when the run is resumed: rows and weights as if it had never been stopped."""
    folder, whole = tmp_path / "run", rueda.fit(normalised_task(), EVALUATED, folder=tmp_path / "whole", progress=False)
    current().barrier()
    stopped = stopped_in_the_evaluation(folder, signal.SIGTERM, rank=current().size - 1)
    assert (stopped.status, stopped.signal) == ("interrupted", signal.SIGTERM)
    current().barrier()
    assert [row.epoch for row in Run(folder).rows("epoch")] == [1]
    assert saved_steps(folder)[-1] == 2 * (whole.row.step // 3)  # type: ignore[union-attr]
    current().barrier()
    resumed = rueda.fit(normalised_task(), EVALUATED, folder=folder, resume=True, progress=False)
    expected = whole.model.state_dict()
    differ = [name for name, one in resumed.model.state_dict().items() if not torch.equal(one, expected[name])]
    assert differ == [], differ
    current().barrier()
    one, other = (
        [(row.epoch, row.step, row.train_loss, row.test_loss, row.recalibrated) for row in Run(one).rows("epoch")]
        for one in (folder, tmp_path / "whole")
    )
    assert one == other
    # The epoch whose updates were all made before has the speed of the training, not none.
    assert all(row.images_per_second > 0 for row in Run(folder).rows("epoch"))


def test_sigusr1_in_an_evaluation_waits_for_its_end(tmp_path: Path) -> None:
    assert stopped_in_the_evaluation(tmp_path, signal.SIGUSR1).status == "finished"


def test_sigusr1_saves_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with before_updates({5: send(signal.SIGUSR1, signal.SIGUSR1), 6: send(signal.SIGUSR1)}):
        result = rueda.fit(tiny_task(), RECIPE, folder=tmp_path, progress=False)
    assert result.status == "finished" and signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    assert saved_steps(tmp_path)[0] == 5 and 6 not in saved_steps(tmp_path)
    assert capsys.readouterr().err == "saved at step 5\n"


def test_without_a_folder_nothing_is_said_to_be_saved(capsys: pytest.CaptureFixture[str]) -> None:
    with before_updates({5: send(signal.SIGUSR1), 7: send(signal.SIGTERM)}):
        assert rueda.fit(tiny_task(), RECIPE, progress=False).signal == signal.SIGTERM
    assert capsys.readouterr().err == ""


def test_a_run_that_is_deleted_is_not_said_to_be_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """That of ``fit(workers=2)`` without a folder, which its workers write into a temporary one."""
    with before_updates({5: send(signal.SIGTERM)}):
        rueda.fit(tiny_task(), RECIPE, folder=tmp_path / f"{SCRATCH_PREFIX}abc" / "run", progress=False)
    assert capsys.readouterr().err == ""


def test_a_second_ctrl_c_after_a_second_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 2.0])
    signals = SignalFilter(clock=lambda: next(moments))
    monkeypatch.setattr("rueda.train.interruption.SignalFilter", lambda: signals)
    with before_updates({5: send(signal.SIGINT, signal.SIGINT)}), pytest.raises(Stopped):
        rueda.fit(tiny_task(), RECIPE, folder=tmp_path, progress=False)


@workers(2)
def test_a_signal_to_one_worker_is_obeyed_by_both(tmp_path: Path) -> None:
    world = current()
    if world.rank == 1:  # which writes nothing itself
        actions = {5: send(signal.SIGUSR1), 40: send(signal.SIGUSR2)}
    else:
        actions = {6: send(signal.SIGUSR1)}  # the same signal, a little later
    with before_updates(actions):
        stopped = rueda.fit(tiny_task(), RECIPE.change(epochs=10_000), folder=tmp_path, progress=False)
    assert stopped.status == "interrupted" and stopped.signal == signal.SIGUSR2
    world.barrier()
    rows = [row.step for row in Run(tmp_path).rows("epoch")]
    between = [step for step in saved_steps(tmp_path) if step not in rows]
    assert len(between) <= 2 and between, "one checkpoint for SIGUSR1 and one for SIGUSR2, unless an epoch ended there"
