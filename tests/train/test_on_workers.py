"""``rueda.fit(..., workers=N)``: the workers are started, and a task reaches them whatever it was made from."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import rueda
from rueda import Recipe
from rueda.errors import RecipeError, TaskError
from rueda.train.on_workers import read_task, write_task
from rueda.train.request import TrainAnswer
from tinytask import parameters, tiny_task, training


def test_fit_starts_workers_that_train_as_rehearsed_ones_do(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    offset = 0.25  # a function of this test alone: the workers get its code
    task = replace(tiny_task(), loss=lambda outputs, targets: tiny_task().loss(outputs, targets) + offset)
    recipe = Recipe(batch=12, epochs=2, precision="float64")
    result = rueda.fit(task, recipe, folder=tmp_path / "run", workers=2)
    assert "clouds on 2 workers" in capfd.readouterr().err.splitlines()
    rehearsed = rueda.fit(task, recipe, workers=2, rehearse=True, progress=False)
    assert result.row is not None and rehearsed.row is not None
    assert (result.status, result.row.epoch, result.recipe.workers) == ("finished", 2, 2)
    assert result.row.test_loss == pytest.approx(rehearsed.row.test_loss, abs=1e-12)
    assert result.row.test_loss is not None and result.row.test_loss > offset
    for one, other in zip(result.model.parameters(), rehearsed.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    assert repr(result).startswith("Result(finished after 2 epochs, test loss ")
    assert repr(result).endswith(f"examples/s, folder {tmp_path / 'run'})") and len(repr(result)) < 300
    assert repr(rehearsed).endswith("examples/s)")


def test_the_model_of_workers_that_diverged_is_the_last_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trained one; or the initial one, if no checkpoint was written before."""

    def run(job: Any, *, workers: int) -> TrainAnswer:
        return TrainAnswer(folder=job.request.folder, status="diverged", divergence="nan or inf in 0.weight")

    wild = Recipe(batch=12, epochs=3, rate=1e39)
    for folder, epochs in ((tmp_path / "none", 0), (tmp_path / "one", 1)):
        before = training(tiny_task(), wild, alone=True).model
        if epochs:
            before = rueda.fit(tiny_task(), wild.change(epochs=1, rate=0.1), folder=folder, progress=False).model
        diverged = rueda.fit(tiny_task(), wild, folder=folder, resume=True, progress=False)
        with monkeypatch.context() as patch:
            patch.setattr("rueda.jobs.run", run)
            result = rueda.fit(tiny_task(), wild, folder=folder, resume=True, workers=2)
        assert (result.status, result.divergence) == ("diverged", "nan or inf in 0.weight")
        assert diverged.row is not None and result.row is not None and result.row.step == diverged.row.step
        assert torch.equal(parameters(result.model), parameters(before))


def test_a_task_of_a_file_is_pickled_with_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "lines.py"
    file.write_text(
        "import rueda, torch\n"
        "def model(): return torch.nn.Flatten(0)\n"
        "data = rueda.Arrays(torch.ones(4, 1), torch.ones(4))\n"
        "def loss(outputs, targets): return (outputs - targets).abs()\n"
        "task = rueda.Task(name='lines', model=model, train=data, test=data, loss=loss, metric=None)\n"
    )
    write_task(rueda.load_task(str(file)), tmp_path / "task.pickle")
    monkeypatch.delitem(sys.modules, "rueda_task_lines")
    path = list(sys.path)
    assert read_task(tmp_path / "task.pickle").loss(torch.zeros(2), torch.ones(2)).tolist() == [1.0, 1.0]
    assert sys.path == path


def test_what_to_do_with_a_task_that_cannot_be_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = threading.Lock()
    with pytest.raises(TaskError, match=r"cannot be pickled for its workers .*define the task in a file"):
        rueda.fit(replace(tiny_task(), loss=lambda outputs, targets: lock), Recipe(), workers=2)
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(TaskError, match="pip install cloudpickle, or define the task in a file and pass its path"):
        rueda.fit(tiny_task(), Recipe(), workers=2)


def test_errors_name_the_arguments_of_python(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="workers"):
        rueda.fit(tiny_task(), Recipe(), workers=0)
    rueda.fit(tiny_task(), Recipe(batch=24, epochs=1), folder=tmp_path / "run", progress=False)
    with pytest.raises(rueda.RuedaError, match="resume=True"):
        rueda.fit(tiny_task(), Recipe(batch=24, epochs=1), folder=tmp_path / "run", progress=False)
