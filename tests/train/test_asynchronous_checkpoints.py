"""Checkpoints that a thread writes: the state of their step, whole or not there, and an error is told in time."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rueda
from forked import forked
from harness import workers
from rueda.errors import PeerError, RunError
from rueda.records import Recipe, Run
from rueda.train import saving
from rueda.train.checkpoint import (
    best_checkpoint,
    latest_checkpoint,
    list_checkpoints,
    load_checkpoint,
    save_checkpoint,
    step_of,
)
from rueda.train.copies import StateCopies, holders_of_copies, recall
from rueda.train.recorder import Recorder
from rueda.train.training import Training
from rueda.train.update import Updater
from rueda.world import World, current
from rueda.world.identity import Identity
from tinytask import assert_same, network, parameters, tiny_task

RECIPE = Recipe(batch=12, epochs=2, rate=0.05, checkpoint_every=3, model={"batch_norm": True}, optimizer="adam")
SECONDS = 60.0


@contextmanager
def writing(replacement: Callable[..., Any]) -> Iterator[None]:
    """Let another function write the checkpoints of ``rueda.fit``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saving, "save_checkpoint", replacement)
        yield


@contextmanager
def at_update(number: int, what: Callable[[], None]) -> Iterator[None]:
    """Let something happen just before an update, counted from 1."""
    original, calls = Updater.update, []

    def update(self: Updater, *given: Any, **options: Any) -> None:
        calls.append(1)
        if len(calls) == number:
            what()
        original(self, *given, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Updater, "update", update)
        yield


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def check_written_while_the_training_goes_on(tmp_path: Path) -> None:
    """The file of update 6 is written after update 8 was made, and holds update 6: resumed, bit for bit."""
    world, folder, seen = current(), tmp_path / "run", [0]
    whole = rueda.fit(tiny_task(480), RECIPE, progress=False)
    step = Training.step

    def counted(self: Training, **options: Any) -> Any:
        result = step(self, **options)
        seen[0] = self.state.step
        return result

    def late(*given: Any, **options: Any) -> Any:
        if options["step"] == 6:
            until(lambda: seen[0] >= 8)
        return save_checkpoint(*given, **options)

    def fail() -> None:
        raise RuntimeError("stop")

    with pytest.MonkeyPatch.context() as patch, writing(late), at_update(9, fail):
        patch.setattr(Training, "step", counted)
        with pytest.raises(RuntimeError, match="stop"):
            rueda.fit(tiny_task(480), RECIPE, folder=folder, progress=False)
    if world.is_main:
        assert [step_of(file) for file in list_checkpoints(folder / "checkpoints")] == [6, 3]
    world.barrier()
    resumed = rueda.fit(tiny_task(480), RECIPE, folder=folder, resume=True, progress=False)
    assert torch.equal(parameters(whole.model), parameters(resumed.model))
    assert {name: one.tolist() for name, one in whole.model.named_buffers()} == {
        name: one.tolist() for name, one in resumed.model.named_buffers()
    }


@workers(2)
def test_two_workers_train_on_while_it_is_written(tmp_path: Path) -> None:
    check_written_while_the_training_goes_on(tmp_path)


@workers(3)
def test_three_workers_train_on_while_it_is_written(tmp_path: Path) -> None:
    check_written_while_the_training_goes_on(tmp_path)


def test_it_holds_what_waiting_would_have_written(tmp_path: Path) -> None:
    """Asynchronous or not: the same files with the same state, apart from its recipe and its seconds."""
    found, sizes = [], []
    for asynchronous in (True, False):
        folder = tmp_path / str(asynchronous)
        recipe = RECIPE.change(asynchronous_checkpoints=asynchronous)
        rueda.fit(tiny_task(480), recipe, folder=folder, progress=False)
        files = [*list_checkpoints(folder / "checkpoints"), best_checkpoint(folder / "checkpoints")]
        sizes.append(len(files))
        found.append([load_checkpoint(file) for file in files if file is not None])
    assert sizes == [3, 3]
    for one, other in zip(*found, strict=True):
        for contents in (one, other):
            contents.pop("recipe")
            contents["place"].pop("seconds")
        assert_same(one, other)


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[2])
import torch, rueda
torch.set_num_threads(1)
from rueda.train import checkpoint
from tinytask import tiny_task
from test_asynchronous_checkpoints import RECIPE
write, written = checkpoint._ChecksumStream.write, []

def until_killed(self, data):
    written.append(len(data))
    if len(list(checkpoint.list_checkpoints(folder))) == 2 and len(written) > first[0] + 20:
        os.kill(os.getpid(), signal.SIGKILL)  # in the middle of the third file
    if len(list(checkpoint.list_checkpoints(folder))) < 2:
        first[0] = len(written)
    return write(self, data)

from pathlib import Path
folder, first = Path(sys.argv[1], "checkpoints"), [0]
checkpoint._ChecksumStream.write = until_killed
rueda.fit(tiny_task(480), RECIPE, folder=sys.argv[1], progress=False)
"""


def test_killed_while_the_thread_writes(tmp_path: Path) -> None:
    whole = rueda.fit(tiny_task(480), RECIPE, progress=False)
    words = [str(tmp_path / "run"), str(Path(__file__).parent)]
    with forked(KILLED, [{**os.environ, "OMP_NUM_THREADS": "1"}], *words) as (process,):
        status, _, errors = process.wait()
    assert status == -signal.SIGKILL, errors
    folder = tmp_path / "run" / "checkpoints"
    assert [step_of(file) for file in list_checkpoints(folder)] == [6, 3] and len(list(folder.glob(".*.part"))) == 1
    found = latest_checkpoint(folder)  # a damaged one would warn, and warnings are errors here
    assert found is not None and found[1]["place"]["step"] == 6
    resumed = rueda.fit(tiny_task(480), RECIPE, folder=tmp_path / "run", resume=True, progress=False)
    assert torch.equal(parameters(whole.model), parameters(resumed.model)) and not list(folder.glob(".*.part"))


FULL = """
import resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import rueda, torch
torch.set_num_threads(1)
from test_asynchronous_checkpoints import RECIPE, at_update, until
from tinytask import tiny_task
def fill():
    until(lambda: list(Path(sys.argv[1], "checkpoints").glob("step-*.pt")))
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))  # a file can grow no more
with at_update(5, fill):
    try:
        rueda.fit(tiny_task(480), RECIPE, folder=sys.argv[1], progress=False)
    except rueda.errors.RunError as error:
        print(error)
"""


def test_a_full_disk_is_told_in_one_line(tmp_path: Path) -> None:
    words = [str(tmp_path / "run"), str(Path(__file__).parent)]
    with forked(FULL, [{**os.environ, "OMP_NUM_THREADS": "1"}], *words) as (process,):
        status, out, errors = process.wait()
    assert status == 0, errors
    folder = tmp_path / "run" / "checkpoints"
    assert out.startswith(f"cannot write {folder}/step-000000") and out.count("\n") == 1
    assert out.endswith(": File too large; free space or choose another folder\n")
    assert [load_checkpoint(file)["place"]["step"] for file in list_checkpoints(folder)] == [3]
    assert not list(folder.glob(".*.part"))


def fail(*given: Any, **options: Any) -> None:
    raise RunError("cannot write here: No space left on device; free space or choose another folder")


def check_an_error_is_told_at_the_next_step(tmp_path: Path) -> None:
    """The file of update 3 cannot be written: all workers learn of it before that of update 6 is due."""
    failed, seen = threading.Event(), [0]
    step = Training.step

    def fail_and_tell(*given: Any, **options: Any) -> None:
        failed.set()
        fail()

    def slow(self: Training, **options: Any) -> Any:
        if self.state.step == 4 and current().is_main:
            assert failed.wait(SECONDS)
            until(lambda: not any(thread.name == "rueda checkpoint writer" for thread in threading.enumerate()))
        result = step(self, **options)
        seen[0] = self.state.step
        return result

    expected = RunError if current().is_main else PeerError
    with pytest.MonkeyPatch.context() as patch, writing(fail_and_tell):
        patch.setattr(Training, "step", slow)
        # Signals, and so errors, are compared after every step, however short it is.
        patch.setattr("rueda.train.interruption.math.ceil", lambda value: 1)
        with pytest.raises(expected, match="No space left on device"):
            rueda.fit(tiny_task(480), RECIPE, folder=tmp_path / "run", progress=False)
    assert 3 <= seen[0] <= 5


def test_an_error_is_told_at_the_next_step(tmp_path: Path) -> None:
    check_an_error_is_told_at_the_next_step(tmp_path)


@workers(2)
def test_an_error_is_told_to_both(tmp_path: Path) -> None:
    check_an_error_is_told_at_the_next_step(tmp_path)


@workers(3)
def test_an_error_is_told_to_all(tmp_path: Path) -> None:
    check_an_error_is_told_at_the_next_step(tmp_path)


def test_an_error_at_the_end_is_told(tmp_path: Path) -> None:
    def fail_last(*given: Any, **options: Any) -> Any:
        return fail() if options["step"] == 40 else save_checkpoint(*given, **options)

    with writing(fail_last), pytest.raises(RunError, match="No space left"):
        rueda.fit(tiny_task(480), RECIPE.change(checkpoint_every=None), folder=tmp_path, progress=False)


def test_after_a_signal_everything_is_on_disk(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The writer is slow: what is announced as saved is there when it is announced, and when ``fit`` returns."""

    def slow(*given: Any, **options: Any) -> Any:
        time.sleep(0.1)
        return save_checkpoint(*given, **options)

    with writing(slow), at_update(8, lambda: os.kill(os.getpid(), signal.SIGTERM)):
        stopped = rueda.fit(tiny_task(480), RECIPE, folder=tmp_path, progress=False)
    assert stopped.status == "interrupted"
    assert [step_of(file) for file in list_checkpoints(tmp_path / "checkpoints")] == [8, 6]
    assert "saved at step 8" in capfd.readouterr().err


# Copies in memory.


def test_memory_is_used_again_and_the_copy_is_the_state() -> None:
    tied = torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    state: dict[str, Any] = {
        "model": model.state_dict(), "tied": [tied, tied, tied[:2]], "empty": torch.zeros(0), "text": ("a", 1, None),
        "half": torch.ones(3, dtype=torch.bfloat16),
    }  # fmt: skip
    copies = StateCopies(torch.device("cpu"), 1)
    first = copies.take(1, state).contents
    places = [first["model"]["0.weight"].data_ptr(), first["tied"][0].data_ptr()]
    assert first["tied"][0] is first["tied"][1] and first["tied"][0].stride() == tied.stride()
    assert first["model"]._metadata == state["model"]._metadata and type(first["model"]) is type(state["model"])
    assert torch.equal(first["tied"][2], tied[:2]) and first["text"] == ("a", 1, None)
    before = tied.clone()
    tied.zero_()
    assert torch.equal(first["tied"][0], before)
    second = copies.take(2, state).contents
    assert places == [second["model"]["0.weight"].data_ptr(), second["tied"][0].data_ptr()]
    state["half"] = torch.ones(5)  # another shape: its memory is made anew, the rest stays
    assert copies.take(3, state).contents["half"].shape == (5,) and len(copies.kept()) == 1


def test_copies_of_one_step_take_turns() -> None:
    """A signal, ``checkpoint_every`` and the end of an epoch may save one update: the last copy is being written."""
    copies, weight = StateCopies(torch.device("cpu"), 2), torch.zeros(1)
    places = [copies.take(20, {"weight": weight.fill_(number)}).contents["weight"] for number in range(4)]
    assert places[0] is places[2] and places[1] is places[3] and places[0] is not places[1]
    assert [one.contents["weight"].item() for one in copies.kept()] == [3.0, 2.0]
    copies.forget_after(19)
    assert copies.kept() == [] and copies.take(1, {"weight": weight}).contents["weight"] is places[0]


@pytest.mark.parametrize("at", [None, 0, 2**20, 2**20 + 5])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_copy_knows_whether_it_is_finite(at: int | None, value: float) -> None:
    tensor = torch.ones(2**20 + 6)
    if at is not None:
        tensor[at] = value
    copies = StateCopies(torch.device("cpu"), 1)
    taken = copies.take(1, {"count": torch.tensor(3), "state": [tensor]})
    assert taken.is_finite == (at is None) and torch.equal(taken.contents["state"][0].isnan(), tensor.isnan())
    assert not copies.take(2, {"half": torch.ones(2).half()}).is_finite  # not known: it is tested by itself


@pytest.mark.parametrize(
    ("size", "local_size", "holders", "elastic"),
    [
        (1, 1, {0}, {0}),
        (3, 3, {0}, {0, 1}),
        (2, 1, {0, 1}, {0, 1}),
        (8, 4, {0, 4}, {0, 1, 4}),
    ],
)
def test_copies_are_kept_on_another_host(size: int, local_size: int, holders: set[int], elastic: set[int]) -> None:
    class Told(World):
        def broadcast_object(self, value: Any, source: int = 0) -> Any:
            return value

    world = Told(identity=Identity(size=size, local_size=local_size))
    assert holders_of_copies(world) == holders and holders_of_copies(world, elastic=True) == elastic


def check_recalled(tmp_path: Path) -> None:
    """The disk and rank 0's memory are lost: all continue from the neighbour's, and end as if nothing had happened."""
    here, folder = current(), tmp_path / "run"
    world = replace(here, identity=replace(here.identity, local_rank=0, local_size=1))  # each on a host of its own
    whole = rueda.fit(tiny_task(480), RECIPE, progress=False)
    recipe = RECIPE.change(workers=world.size)
    job = Training(tiny_task(480), recipe, world)
    recorder = Recorder(job, Run(folder))
    saver = recorder._saver
    assert saver is not None
    for _ in range(7):
        recorder.record_step(job.step())
    saver.finish()
    world.barrier()
    kept = world.all_gather_object([one.step for one in saver.copies.kept()])
    assert kept[:2] == [[6, 3], [6, 3]] and not any(kept[2:])
    if world.is_main:
        shutil.rmtree(folder / "checkpoints")
        saver.copies = StateCopies(world.device, 2)
    again = Training(tiny_task(480), recipe, world)
    found = recall(world, saver.copies)
    assert found is not None and str(found[0]) == "the copy of update 6 in the memory of rank 1"
    from rueda.train.loop import run_epochs
    from rueda.train.state import restore

    restore(again, *found)
    assert again.state.step == 6
    recorder.close()
    result = run_epochs(again, Recorder(again))
    assert torch.equal(parameters(whole.model), parameters(result.model))
    assert recall(world, StateCopies(world.device, 2)) is None


@workers(2)
def test_the_neighbour_of_two_recalls(tmp_path: Path) -> None:
    check_recalled(tmp_path)


@workers(3)
def test_the_neighbour_of_three_recalls(tmp_path: Path) -> None:
    check_recalled(tmp_path)


# A loop of one's own.


def test_an_own_loop_goes_on_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, gate = network(), threading.Event()
    saved = parameters(model).clone()

    def late(*given: Any, **options: Any) -> Any:
        assert gate.wait(SECONDS)
        return save_checkpoint(*given, **options)

    monkeypatch.setattr("rueda.train.own_loop.save_checkpoint", late)
    checkpoint = rueda.Checkpoint(tmp_path, model=model, asynchronous=True)
    assert checkpoint.wait() is None and checkpoint.save(1) is None
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert not list_checkpoints(tmp_path)
    gate.set()
    file = checkpoint.wait()
    assert file is not None and file.name.startswith("step-00000001.") and file.exists()
    again = network()
    assert rueda.Checkpoint.resume(checkpoint) == 1 and torch.equal(parameters(model), saved)
    monkeypatch.setattr("rueda.train.own_loop.save_checkpoint", fail)
    checkpoint.save(2)
    with pytest.raises(RunError, match="No space left"):
        checkpoint.save(3)
    assert checkpoint.resume() == 1 and again is not model
    monkeypatch.undo()
    for _ in checkpoint.epochs(3):
        pass
    assert [step_of(file) for file in list_checkpoints(tmp_path)] == [3, 2]
