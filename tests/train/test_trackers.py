"""Trackers: which there are, what they receive, one line where one is missing; TensorBoard's events."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import rueda
from commandline import rueda as rueda_here
from commandline import settle_in
from rueda.errors import MissingExtra, RunError
from rueda.records import Row, Run
from rueda.train.trackers import checked_names
from rueda.train.trackers.opening import TRACKERS
from rueda.train.trackers.tracker import numbers
from tinytask import tiny_task


def test_names() -> None:
    assert checked_names(()) == () and checked_names("tensorboard") == ("tensorboard",)
    assert checked_names(["tensorboard", "tensorboard"], tensorboard=True) == ("tensorboard",)
    with pytest.raises(RunError, match=r"expected one of tensorboard, mlflow, wandb, got .tensorbord"):
        checked_names("tensorbord")


@pytest.mark.parametrize("name", TRACKERS)
def test_a_missing_tracker_is_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settle_in(tmp_path, monkeypatch)
    monkeypatch.setattr("rueda.train.trackers.opening.find_spec", lambda _: None)
    assert rueda_here("train", "clouds.py", "--workers", "2", "--track", name, "--run", "run") == 2
    told = capsys.readouterr().err.strip()
    assert told.endswith(f"{name} is needed but not installed: run `pip install 'rueda[{name}]'`")
    assert "\n" not in told and not Path("run").exists()
    with pytest.raises(MissingExtra):
        rueda.fit(tiny_task(), folder="run", track=name)


def test_a_tracker_needs_a_folder() -> None:
    with pytest.raises(RunError, match="track: expected a run folder beside it"):
        rueda.fit(tiny_task(), track="tensorboard")


def test_tensorboard_has_the_figures_of_the_rows(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    task = tiny_task()
    rueda.fit(task, task.recipe.change(epochs=2), folder=tmp_path / "run", progress=False, track=["tensorboard"])
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    rows = Run(tmp_path / "run").rows("epoch")
    for name, value in numbers(rows[-1]).items():
        last = events.Scalars(name)[-1]
        assert last.step == rows[-1].step and last.value == pytest.approx(value, rel=1e-5)


def test_a_tracker_that_fails_does_not_end_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Gone:
        def __init__(self, run: Run) -> None:
            self.num_written = 0

        def write(self, figures: Mapping[str, float], step: int) -> None:
            self.num_written += 1
            if self.num_written == 2:
                raise ConnectionError("the server\ndoes not answer")

        def close(self) -> None:
            raise AssertionError("it is not used any more")

    monkeypatch.setitem(TRACKERS, "tensorboard", Gone)
    task = tiny_task()
    found = rueda.fit(task, task.recipe.change(epochs=3), folder=tmp_path / "run", progress=False, track="tensorboard")
    assert found.status == "finished" and len(Run(tmp_path / "run").rows("epoch")) == 3
    said = "tensorboard gets no further figures (ConnectionError: the server does not answer); the run folder has all"
    assert capfd.readouterr().err.count(said) == 1


def test_names_of_metrics_are_those_that_every_tracker_takes() -> None:
    row = Row(
        kind="epoch", epoch=1, step=9, examples=90, seconds=2.0, train_loss=0.5, train_accuracy=None,
        images_per_second=45.0, rate=0.1, global_batch=10, figures={"test": {"recall @10": 0.5, "top-5": 0.75}},
    )  # fmt: skip
    assert numbers(row)["test_recall_10"] == 0.5 and numbers(row)["test_top-5"] == 0.75


def test_no_tracker_is_imported_before_it_is_used() -> None:
    assert "mlflow" not in sys.modules and "wandb" not in sys.modules
