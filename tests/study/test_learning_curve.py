"""Trainings on growing subsets: what is drawn, how long it is trained, and that nothing is run twice."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from jobshere import run_jobs_here
from rueda.errors import RecipeError, RunError, TaskError
from rueda.records import Run
from rueda.records.forecast import Forecast
from rueda.records.metric import LOSS
from rueda.records.subset import TrainedSubset
from rueda.study.learning_curve import geometric_sizes, measure_learning_curve
from rueda.study.subset import balanced_subset, subset_of
from rueda.tasks.metrics import Metric
from rueda.tasks.task import Task, cross_entropy
from rueda.train import fit
from rueda.train import job as train_job
from rueda.train.request import TrainAnswer, TrainRequest
from tinytask import clouds, tiny_task


def test_sizes_are_geometric() -> None:
    assert geometric_sizes(15_000) == [469, 938, 1875, 3750, 7500, 15_000]
    assert geometric_sizes(100) == [100] and geometric_sizes(30) == [30]


def test_too_few_default_sizes_are_refused_before_any_training(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"0.25 of 600 .* gives 2 sizes .* give --largest-fraction 0.86 or --sizes"):
        measure_learning_curve(tiny_task(600), folder=tmp_path, progress=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("size", [1, 7, 60, 199, 200])
def test_a_subset_is_distinct_and_balanced(size: int) -> None:
    labels = np.array([0] * 100 + [1] * 60 + [2] * 40)
    chosen = balanced_subset(labels, size, seed=3)
    assert len(set(chosen.tolist())) == size
    for label, share in ((0, 0.5), (1, 0.3), (2, 0.2)):
        assert abs((labels[chosen] == label).sum() - share * size) <= 1
    assert (chosen == balanced_subset(labels, size, seed=3)).all()


def test_subsets_of_other_seeds_and_sizes_are_other_ones() -> None:
    labels = np.zeros(1000, dtype=np.int64)
    one, other, larger = (
        set(balanced_subset(labels, size, seed).tolist()) for size, seed in ((100, 0), (100, 1), (200, 0))
    )
    # Drawn independently, 10 and 20 of 100 are common on average; three deviations are 9 and 12.
    assert len(one & other) < 20 and len(one & larger) < 33


@pytest.mark.parametrize(("growth", "length"), [(0.0, 240), (0.5, 120), (1.0, 60)])
def test_a_small_set_is_seen_more_often(growth: float, length: int) -> None:
    part = subset_of(tiny_task(), 60, seed=0, growth=growth).load("train")
    assert len(part) == length
    counts = Counter(tuple(row) for row in part.inputs.tolist())
    assert len(counts) == 60 and set(counts.values()) == {length // 60}


def test_any_torch_dataset_has_subsets() -> None:
    data = torch.utils.data.TensorDataset(torch.randn(100, 8), torch.randint(0, 3, (100,)))
    task = tiny_task()
    part = subset_of(type(task)(name="t", model=task.model, train=data, test=data), 25, seed=0, growth=0.5)
    assert len(part.load("train")) == 50


def test_the_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = {"sizes": [30, 120], "seeds": 2, "check": True, "folder": tmp_path, "progress": False}
    found = measure_learning_curve(tiny_task(), **words)
    assert [point.examples for point in found.points] == [30, 120] and found.whole is not None
    # 2 epochs of sqrt(240 m) examples, in whole batches of 24.
    assert [(point.updates, point.seeds) for point in found.points] == [(2 * 3, (0, 1)), (2 * 7, (0, 1))]
    assert found.points[0].passes == pytest.approx(2 * 3 * 24 / 30)
    # The whole set is trained by the recipe itself, and its error is that of the last epoch.
    task = tiny_task()
    for seed, error in enumerate(found.whole.errors):
        row = fit(task, task.recipe.change(seed=seed), progress=False).row
        assert row is not None and row.test_accuracy is not None
        assert error == pytest.approx(1 - row.test_accuracy)
    labels = clouds(101, 2).targets
    assert found.chance == pytest.approx(1 - torch.bincount(labels).max().item() / 101)
    assert Forecast.load(tmp_path) == found

    # Again: nothing is run. With a seed more: only that.
    ran = []
    real = train_job.train_task

    def watched(task: Task, request: TrainRequest) -> TrainAnswer:
        ran.append(request.folder.name if request.folder else None)
        return real(task, request)

    monkeypatch.setattr(train_job, "train_task", watched)
    assert measure_learning_curve(tiny_task(), **words).points == found.points and ran == []
    more = measure_learning_curve(tiny_task(), **{**words, "seeds": 3})
    assert ran == ["m240-seed2", "m120-seed2", "m30-seed2"] and more.points[0].errors[:2] == found.points[0].errors


def test_an_interrupted_curve_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = {"sizes": [30, 60], "seeds": 1, "folder": tmp_path / "cut", "progress": False}
    real, count = train_job.train_task, 0

    def stopped(task: Task, request: TrainRequest) -> TrainAnswer:
        nonlocal count
        count += 1
        if count == 2:
            raise KeyboardInterrupt
        return real(task, request)

    monkeypatch.setattr(train_job, "train_task", stopped)
    with pytest.raises(KeyboardInterrupt):
        measure_learning_curve(tiny_task(), **words)
    assert [point.examples for point in Forecast.load(tmp_path / "cut").points] == [60]  # what was finished stands
    after = measure_learning_curve(tiny_task(), **words)
    assert count == 3
    whole = measure_learning_curve(tiny_task(), **{**words, "folder": tmp_path / "whole"})
    assert [point.errors for point in after.points] == [point.errors for point in whole.points]


def test_a_diverged_training_is_no_point(tmp_path: Path) -> None:
    task = replace(tiny_task(), loss=lambda outputs, targets: cross_entropy(outputs, targets) * float("nan"))
    found = measure_learning_curve(task, sizes=[30, 60], seeds=1, folder=tmp_path, progress=False)
    assert [(point.errors, point.diverged) for point in found.points] == [((), 1), ((), 1)]


MISTAKES = {
    "no seeds": ({"seeds": 0}, RecipeError, "seeds: expected 1 or more, got 0"),
    "growth": ({"growth": 1.5}, RecipeError, "growth: expected from 0"),
    "too large": ({"sizes": [30, 999]}, RecipeError, "size: expected from 1 to 240, the training set, got 999"),
    "nothing": ({"sizes": []}, RecipeError, "sizes: expected one or more"),
    "fraction": ({"largest_fraction": 25}, RecipeError, "--largest-fraction: expected above 0 and up to 1, got 25"),
    "check": ({"sizes": [30, 240], "check": True}, RecipeError, "--check compares with a training on the whole set"),
}


@pytest.mark.parametrize(("words", "kind", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes(words: dict[str, object], kind: type[Exception], message: str, tmp_path: Path) -> None:
    with pytest.raises(kind, match=message):
        measure_learning_curve(tiny_task(), folder=tmp_path, progress=False, **words)  # type: ignore[arg-type]


def test_a_task_without_a_metric_is_forecast_by_its_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_jobs_here(monkeypatch)
    words = {"sizes": [25, 50], "seeds": 2, "epochs": 2, "progress": False}
    found = measure_learning_curve("linear", folder=tmp_path, **words)  # type: ignore[arg-type]
    assert found.metric == LOSS and found.error_name == "test loss" and found.chance is None
    assert all(error > 1 for point in found.points for error in point.errors)  # no fractions
    assert Forecast.load(tmp_path) == found
    rising = replace(tiny_task(), metrics=(Metric(name="gain", measure=lambda outputs, batch: outputs[:, 0]),))
    with pytest.raises(TaskError, match="the gain of task clouds is better the higher it is, and is no fraction"):
        measure_learning_curve(rising, folder=tmp_path / "other", **words)  # type: ignore[arg-type]
    with pytest.raises(TaskError, match="--target-metric of task linear: expected loss, got 'AUC'"):
        measure_learning_curve("linear", folder=tmp_path, metric="AUC", **words)  # type: ignore[arg-type]


def test_two_ways_of_training_do_not_mix(tmp_path: Path) -> None:
    words = {"sizes": [30], "seeds": 1, "folder": tmp_path, "progress": False}
    measure_learning_curve(tiny_task(), **words)
    with pytest.raises(RunError, match=r"on 30 examples of clouds, .* growth 1; choose another --folder"):
        measure_learning_curve(tiny_task(), growth=1.0, **words)
    with pytest.raises(RunError, match="was trained with epochs = 2, but now the request is epochs = 3"):
        measure_learning_curve(tiny_task(), epochs=3, **words)
    run = tmp_path / "runs" / "m30-seed0"
    assert json.loads((run / "subset.json").read_text())["examples"] == 30 and Run(run).rows("epoch")[-1].epoch == 2
    older = {"task": "clouds", "examples": 30, "seed": 0, "growth": 0.5}  # before it was a record
    (run / "subset.json").write_text(json.dumps(older))
    measure_learning_curve(tiny_task(), **words)
    assert TrainedSubset.load(run).words == "30 examples of clouds, seed 0, growth 0.5"
    (run / "subset.json").write_text("{")
    with pytest.raises(RunError, match=r"subset\.json: expected JSON, .*; remove "):
        measure_learning_curve(tiny_task(), **words)
