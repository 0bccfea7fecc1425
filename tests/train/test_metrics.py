"""Metrics: exact on any number of workers, on validation data and several test sets, and honest in what they say."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rueda
from harness import workers
from rueda.errors import CheckpointError, DataError, TaskError
from rueda.examine.loading import load_model
from rueda.records import Recipe, Run
from rueda.records.metric import ACCURACY, LOSS
from rueda.tasks import metrics
from rueda.tasks.metrics import Metric
from rueda.tasks.phase import Phase
from rueda.tasks.step import Losses
from rueda.tasks.task import Task, squared_error
from rueda.train.checkpoint import find_checkpoint, load_checkpoint
from rueda.train.evaluate import Evaluator, evaluate
from rueda.train.loaders import evaluation_loader
from rueda.train.loss_watch import LossWatch
from rueda.train.recorder import Recorder
from rueda.train.recording import display
from rueda.train.totals import former_sums
from rueda.train.training import Training
from rueda.world import World, current
from tinytask import clouds, network, run, tiny_task, training

EVERY = (
    metrics.accuracy(), metrics.top_k(2), metrics.perplexity(), metrics.f1(positive=2),
    metrics.auc(targets=lambda batch: (batch[1] == 0).long()),
    metrics.pass_rate(lambda outputs, batch: outputs[:, 0] > 0),
)  # fmt: skip


def with_everything() -> Task:
    binary = metrics.auc(targets=lambda batch: (batch[1] == 0).long())
    measured = replace(binary, measure=lambda outputs, batch: binary.measure(outputs[:, 0], batch))  # type: ignore[misc]
    return replace(tiny_task(), metric=None, metrics=(*EVERY[:4], measured, EVERY[5]))


def regression(**options: object) -> Task:
    def data(seed: int) -> rueda.Arrays:
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.randn(101, 8, generator=generator)
        return rueda.Arrays(inputs, inputs.sum(1) + 0.1 * torch.randn(101, generator=generator))

    return Task(
        name="sums", model=lambda: nn.Sequential(nn.Linear(8, 1), nn.Flatten(0)), train=lambda: data(1),
        test=lambda: data(2), loss=squared_error, recipe=Recipe(batch=10, epochs=2, rate=0.02), **options,  # type: ignore[arg-type]
    )  # fmt: skip


def check_every_metric_is_the_same_on_any_number_of_workers() -> None:
    task, world = with_everything(), current()
    torch.manual_seed(7)
    model, data = network().double(), task.load("test")
    alone = evaluate(task, model, evaluation_loader(data, 16, World(), torch.float64), World())
    together = evaluate(task, model, evaluation_loader(data, 16, world, torch.float64), world)
    assert together.num_examples == alone.num_examples == 101 and together.counts == alone.counts
    assert together.values == pytest.approx(alone.values, rel=1e-12)
    for name in ("accuracy", "top-2", "F1", "AUC", "pass rate"):  # whole numbers are added: no rounding at all
        assert together.values[name] == alone.values[name]
    # Against the definitions.
    outputs, targets = model.eval()(data.inputs.double()).detach(), data.targets  # type: ignore[union-attr]
    right = outputs.argmax(1) == targets
    said, true = outputs.argmax(1) == 2, targets == 2
    positive, negative = outputs[targets == 0, 0], outputs[targets != 0, 0]
    area = (positive[:, None] > negative).double().mean() + 0.5 * (positive[:, None] == negative).double().mean()
    found = alone.values
    assert found["accuracy"] == int(right.sum()) / 101 and found["AUC"] == pytest.approx(float(area), rel=1e-12)
    assert found["F1"] == pytest.approx(float(2 * (said & true).sum() / (said.sum() + true.sum())), rel=1e-6)
    loss = nn.functional.cross_entropy(outputs.double(), targets)
    assert found["perplexity"] == pytest.approx(float(loss.exp()), rel=1e-5)


def check_a_training_records_every_metric() -> None:
    result = run(training(with_everything(), Recipe(batch=24 // current().size, epochs=2, rate=0.1)))
    assert result.row is not None
    assert [one.name for one in result.row.metrics] == ["accuracy", "top-2", "perplexity", "F1", "AUC", "pass rate"]
    assert result.row.metric == ACCURACY and result.row.value() == result.row.test_accuracy
    train, test = result.row.figures["train"], result.row.figures["test"]
    assert train["AUC"] is None and all(value is not None for value in test.values())  # nothing is gathered in training
    assert train["perplexity"] == pytest.approx(math.exp(train["loss"] or 0))
    assert train["accuracy"] == result.row.train_accuracy


def test_one_worker_measures_every_metric() -> None:
    check_every_metric_is_the_same_on_any_number_of_workers()
    check_a_training_records_every_metric()


@workers(2)
def test_two_workers_measure_what_one_does() -> None:
    check_every_metric_is_the_same_on_any_number_of_workers()
    check_a_training_records_every_metric()


@workers(3)
def test_three_workers_measure_what_one_does() -> None:
    check_every_metric_is_the_same_on_any_number_of_workers()
    check_a_training_records_every_metric()


@workers(2)
def test_the_errors_of_a_regression_on_two_workers() -> None:
    task = regression(metrics=(metrics.root_mean_squared_error(), metrics.mean_absolute_error()))
    torch.manual_seed(1)
    model, data = task.build(task.recipe), task.load("test")
    found = evaluate(task, model, evaluation_loader(data, 8, current(), torch.float32), current()).values
    error = (model(data.inputs) - data.targets).detach().double()  # type: ignore[union-attr]
    assert found["RMSE"] == pytest.approx(float(error.square().mean().sqrt()), rel=1e-6)
    assert found["MAE"] == pytest.approx(float(error.abs().mean()), rel=1e-6)


def test_a_metric_that_returns_fractions_is_its_mean() -> None:
    def closeness(outputs: Tensor, targets: Tensor) -> Tensor:
        return (1 - (outputs - targets).abs()).clamp(0, 1)

    result = rueda.fit(regression(metric=closeness), progress=False)
    assert result.row is not None and result.row.metric.name == "closeness" and not result.row.metric.percent
    assert 0 < (result.row.value() or 0) < 1 and result.row.test_accuracy is None
    assert "test closeness 0." in repr(result) and "%" not in repr(result)


def tags(num_tokens: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scores [B, T, classes] and tags [B, T], of which some are padding."""
    generator = torch.Generator().manual_seed(3)
    wanted = torch.randint(0, 3, (4, num_tokens), generator=generator)
    wanted[:, -2:] = -100
    return torch.randn(4, num_tokens, 3, generator=generator), wanted


@pytest.mark.parametrize("class_dim", [-1, 1])
def test_tokens_are_measured_and_padding_is_left_out(class_dim: int) -> None:
    scores, wanted = tags()
    outputs, said, is_token = scores.movedim(-1, class_dim), scores.argmax(-1), wanted >= 0
    given: dict[str, Any] = {"class_dim": class_dim}
    right, counted = metrics.accuracy(**given).measure(outputs, {"targets": wanted})  # type: ignore[misc]
    assert int((right & counted).sum()) == int((said == wanted)[is_token].sum()) and int(counted.sum()) == 12
    among, counted = metrics.top_k(2, **given).measure(outputs, {"targets": wanted})  # type: ignore[misc]
    best = scores.topk(2, dim=-1).indices[is_token]
    assert int((among & counted).sum()) == int((best == wanted[is_token][:, None]).any(1).sum())
    hits, wrong, missed = metrics.f1(positive=2, **given).measure(outputs, {"targets": wanted}).tolist()  # type: ignore[misc, union-attr]
    said, true = said[is_token] == 2, wanted[is_token] == 2
    assert (hits, wrong, missed) == (int((said & true).sum()), int((said & ~true).sum()), int((~said & true).sum()))


@pytest.mark.parametrize("num_tokens", [3, 5])  # as many tokens as classes: either dimension could be the classes
@pytest.mark.parametrize("metric", [metrics.accuracy(), metrics.top_k(2), metrics.f1()], ids=lambda one: str(one.name))
def test_the_dimension_of_the_classes_is_not_guessed(metric: Metric, num_tokens: int) -> None:
    scores, wanted = tags(num_tokens)
    with pytest.raises(TaskError, match=f"metric {metric.name}: .*class_dim=-1"):
        metric.measure(scores, {"labels": wanted})  # type: ignore[misc]


def test_a_function_of_true_and_false_is_an_accuracy() -> None:
    task = replace(tiny_task(), metric=lambda outputs, targets: outputs.argmax(1) == targets)
    own, built_in = rueda.fit(task, progress=False).row, rueda.fit(tiny_task(), progress=False).row
    assert own is not None and built_in is not None
    assert own.metric == built_in.metric == ACCURACY and own.test_accuracy == built_in.test_accuracy


def test_a_task_without_a_metric_is_judged_by_its_loss(capfd: pytest.CaptureFixture[str]) -> None:
    result = rueda.fit(regression(metric=None))
    assert result.row is not None and result.row.metric == LOSS
    assert result.row.value() == result.row.test_loss and result.row.value("train") == result.row.train_loss
    shown = capfd.readouterr().err
    assert "accuracy" not in shown and "examples/s" in shown and "images" not in shown


def test_a_value_outside_its_range_is_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    wrong = Metric(name="score", measure=lambda outputs, batch: torch.full((len(outputs),), 3.0), low=0.0, high=1.0)
    rueda.fit(replace(tiny_task(), metrics=(wrong,)), progress=False)
    lines = [line for line in capfd.readouterr().err.splitlines() if "score" in line]
    said = "score is 3, but it can only be from 0 to 1; check the metric"
    assert lines == [f"train: {said}", f"test: {said}"]


def test_several_test_sets_and_a_validation_split(tmp_path: Path) -> None:
    task = replace(
        tiny_task(), test={"clean": clouds(101, 2), "shifted": clouds(50, 3)}, validation=0.1,
        metrics=(metrics.accuracy(), metrics.top_k(2)),
    )  # fmt: skip
    assert (len(task.load("train")), len(task.load("validation"))) == (216, 24)  # type: ignore[arg-type]
    again = replace(task, recipe=Recipe(seed=9)).load("validation")
    assert torch.equal(again.inputs, task.load("validation").inputs)  # type: ignore[union-attr]
    result = rueda.fit(task, folder=tmp_path / "run", progress=False)
    row = Run(tmp_path / "run").rows("epoch")[-1]
    assert row == replace(result.row, seconds=row.seconds, images_per_second=row.images_per_second)  # type: ignore[type-var]
    assert list(row.figures) == ["train", "validation", "test", "shifted"]
    assert row.deciding() == row.figures["validation"]["accuracy"] != row.value()
    assert row.value("shifted", "top-2") is not None and row.examples == 2 * 216


def test_a_recipe_holds_out_what_the_task_would(tmp_path: Path) -> None:
    """The same examples, whether the task or the recipe names the fraction: the trainings are equal to the last bit."""
    by_recipe = rueda.fit(tiny_task(), tiny_task().recipe.change(validation=0.1), folder=tmp_path / "a", progress=False)
    rueda.fit(replace(tiny_task(), validation=0.1), folder=tmp_path / "b", progress=False)
    first, second = ([row.figures for row in Run(tmp_path / name).rows("epoch")] for name in "ab")
    assert first == second and list(first[-1]) == ["train", "validation", "test"]
    assert by_recipe.row is not None and by_recipe.row.examples == 2 * 216
    held = load_model(tmp_path / "a", task=tiny_task()).objectives(("train", "validation"), num_examples=None)
    assert {name: len(one.targets) for name, one in held.items()} == {"train": 216, "validation": 24}


def test_held_out_data_beside_validation_data_are_refused() -> None:
    task = replace(tiny_task(), validation=lambda: clouds(60, 5))
    with pytest.raises(TaskError, match=r"validation = 0.1 of the recipe .* has validation data of its own; leave it"):
        rueda.fit(task, task.recipe.change(validation=0.1), progress=False)


def test_the_best_checkpoint_is_that_of_the_best_validation(tmp_path: Path) -> None:
    task = replace(tiny_task(), validation=lambda: clouds(60, 5), metric=None)
    rueda.fit(task, Recipe(batch=24, epochs=6, rate=0.5), folder=tmp_path, progress=False)
    rows = Run(tmp_path).rows("epoch")
    best = min(rows, key=lambda row: row.value("validation", "loss") or 0)
    file = find_checkpoint(Run(tmp_path).checkpoints, "best")
    assert file is not None
    state = load_checkpoint(file)
    assert state["place"]["step"] == best.step and state["place"]["best"] == -(best.value("validation") or 0)


def test_a_target_of_any_metric_ends_the_training() -> None:
    task = regression(metrics=(metrics.mean_absolute_error(),))
    recipe = Recipe(batch=10, epochs=200, rate=0.02, target=0.5)
    ended = rueda.fit(task, recipe, progress=False)
    assert ended.status == "reached-target" and ended.row is not None and (ended.row.value() or 9) <= 0.5
    by_loss = rueda.fit(task, recipe.change(target_metric="loss", target=1.0), progress=False)
    assert by_loss.status == "reached-target" and ((by_loss.row and by_loss.row.test_loss) or 9) <= 1.0
    with pytest.raises(TaskError, match="target_metric of task sums: expected loss, MAE, got 'AUC'"):
        rueda.fit(task, recipe.change(target_metric="AUC"), progress=False)


def test_tokens_are_counted_by_their_weights() -> None:
    def step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Losses:
        outputs = model(batch[0])
        losses = nn.functional.cross_entropy(outputs, batch[1], reduction="none")
        return Losses(losses, torch.full_like(losses, 4.0), outputs)

    task = replace(tiny_task(), step=step, unit="tokens", metrics=(metrics.perplexity(),))
    row = rueda.fit(task, progress=False).row
    assert row is not None and row.unit == "tokens" and row.units == 4 * row.examples
    assert row.mean_images_per_second == pytest.approx(4 * row.examples / row.seconds)
    assert row.metric.name == "perplexity" and row.value() == pytest.approx(math.exp(row.test_loss or 0))


def test_an_exploding_loss_is_said_while_it_is_finite(capfd: pytest.CaptureFixture[str]) -> None:
    rueda.fit(regression(metric=None), Recipe(batch=10, epochs=4, rate=0.3, optimizer="sgd", momentum=0.0),
              progress=False)  # fmt: skip
    assert "the loss is" not in capfd.readouterr().err
    calm, watch = [1.0, 0.9, 1.1] * 10, LossWatch()
    total, lines = 0.0, []
    for step, loss in enumerate([*calm, 30.0, 60.0, 1.0, 1.0], 1):
        total += loss
        lines.append(watch.take(total, float(step), step))
    assert [index for index, line in enumerate(lines, 1) if line] == [31]  # once for an excursion


@pytest.mark.parametrize(("weight", "told"), [(24.0, [11]), (4.0, [])], ids=["many examples", "few by chance"])
def test_a_loss_that_explodes_in_the_first_updates_is_said(weight: float, told: list[int]) -> None:
    """The running mean has exploded with it; the loss of the first update has not."""
    watch, total, lines = LossWatch(), 0.0, []
    for step, loss in enumerate([1.1, 40.0, *[150.0, 90.0] * 40], 1):
        total += weight * loss
        lines.append(watch.take(total, weight * step, step))
    assert [index for index, line in enumerate(lines, 1) if line] == told
    assert told == [] or "the loss is 150, 136 times that of the first update, 1.1; lower" in str(lines[10])


def watched(watch: LossWatch, losses: list[float]) -> list[str]:
    total, lines = 0.0, []
    for step, loss in enumerate(losses, 1):
        total += 24.0 * loss
        lines.append(watch.take(total, 24.0 * step, step))
    return [line for line in lines if line]


def test_a_loss_near_an_exact_fit_is_none_that_explodes_after_a_resume() -> None:
    """Single hard batches differ by such factors; the loss of the first epoch, 3, tells that they are all small."""
    losses = [0.001, *[0.0015, 0.02] * 20]
    assert watched(LossWatch(is_resumed=True, former=3.0), losses) == []
    assert len(watched(LossWatch(is_resumed=True), losses)) > 1  # if nothing is known of before


def test_a_resumed_training_that_explodes_at_once_is_told_with_what_it_is_compared() -> None:
    (line,) = watched(LossWatch(is_resumed=True, former=3.0), [0.01, 40.0, *[150.0, 90.0] * 40])
    assert "the loss is 150, 15,000 times that of the first update since the training was resumed, 0.01; l" in line


def test_a_resumed_run_knows_the_loss_of_its_first_epoch(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    task, recipe = regression(metric=None), Recipe(batch=10, epochs=1, rate=0.05)
    first = rueda.fit(task, recipe, folder=tmp_path / "run", progress=False).row
    assert first is not None and first.train_loss is not None
    seen: list[float | None] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(display, "LossWatch", lambda **known: seen.append(known["former"]) or LossWatch(**known))
        rueda.fit(task, recipe.change(epochs=3), folder=tmp_path / "run", resume=True, progress=False)
        rueda.fit(task, recipe.change(epochs=1), folder=tmp_path / "new", progress=False)
    assert seen == [first.train_loss, None]


def test_sums_of_an_older_checkpoint_are_read() -> None:
    found = former_sums([12.0, 3.0, 4.0], (metrics.accuracy(),))
    assert found == {"loss": [12.0, 4.0, 4.0], "accuracy": [3.0, 4.0, 0.0]}


def test_a_resumed_run_keeps_both_recipes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    task = tiny_task()
    first = task.recipe.change(epochs=1)
    rueda.fit(task, first, folder=tmp_path, progress=False)
    rueda.fit(task, first.change(epochs=2, rate=0.05), folder=tmp_path, resume=True)
    assert "the recipe changes from update 10 on: epochs = 1 -> 2, rate = 0.1 -> 0.05" in capfd.readouterr().err
    rueda.fit(task, first.change(epochs=3, rate=0.05), folder=tmp_path, resume=True, progress=False)
    stages = Run(tmp_path).history()
    assert [stage.from_step for stage in stages] == [0, 10, 20]
    assert [Recipe.from_toml(stage.recipe).rate for stage in stages] == [0.1, 0.05, 0.05]
    # A run of an older Rueda has no history; what it was trained with is the first stage.
    about = json.loads((tmp_path / "environment.json").read_text())
    del about["history"]
    (tmp_path / "environment.json").write_text(json.dumps(about))
    rueda.fit(task, first.change(epochs=4, rate=0.01), folder=tmp_path, resume=True, progress=False)
    assert [(stage.from_step, Recipe.from_toml(stage.recipe).rate) for stage in Run(tmp_path).history()] == [
        (0, 0.05), (30, 0.01),
    ]  # fmt: skip


def two_phases(decay: float = 0.0) -> Task:
    """Return a task of which only the first of two phases has outputs that a metric could read."""

    def classify(model: nn.Sequential, batch: tuple[Tensor, Tensor]) -> Losses:
        outputs = model(batch[0])
        return Losses(nn.functional.cross_entropy(outputs, batch[1], reduction="none"), None, outputs)

    def shrink(model: nn.Sequential, batch: tuple[Tensor, Tensor]) -> Tensor:
        return model(batch[0]).square().sum(1)

    phases = (
        Phase(name="first", step=classify, parameters=lambda model: model[0].parameters()),
        Phase(name="last", step=shrink, parameters=lambda model: model[-1].parameters()),
    )
    recipe = tiny_task().recipe.change(epochs=1, weight_decay=decay)
    return replace(tiny_task(), phases=phases, metrics=(metrics.accuracy(),), recipe=recipe)


def test_only_the_first_phase_measures_the_metrics() -> None:
    row = rueda.fit(two_phases(), progress=False).row
    assert row is not None and row.metric == ACCURACY and row.test_accuracy is not None


def test_a_changed_option_reaches_the_optimizers_of_all_phases(tmp_path: Path) -> None:
    task = two_phases()
    rueda.fit(task, folder=tmp_path, progress=False)
    now = training(task, task.recipe.change(epochs=2, weight_decay=0.25))
    Recorder(now, Run(tmp_path), resume="last")
    decays = [max(group["weight_decay"] for group in each.optimizer.param_groups) for each in now.updaters]
    assert decays == [0.25, 0.25]


def test_a_changed_recipe_of_a_phase_applies_on_resume(tmp_path: Path) -> None:
    """It was ignored without a word: an optimizer continued with the options of the checkpoint."""
    task = two_phases()
    rueda.fit(task, folder=tmp_path, progress=False)

    def resumed(**recipe: object) -> Training:
        phases = (task.phases[0], replace(task.phases[1], recipe=recipe))
        now = training(replace(task, phases=phases), task.recipe.change(epochs=2))
        Recorder(now, Run(tmp_path), resume="last")
        return now

    decays = [group["weight_decay"] for group in resumed(weight_decay=0.25).updaters[1].optimizer.param_groups]
    assert max(decays) == 0.25
    told = "phase last of .* with optimizer = 'sgd', but now the request is optimizer = 'adam'"
    with pytest.raises(CheckpointError, match=told):
        resumed(optimizer="adam")


def test_choices_can_be_made_without_the_test_data() -> None:
    """Steps to a target evaluate the validation data alone."""
    one = training(replace(tiny_task(), validation=0.2), tiny_task().recipe)
    one.step()
    found = Evaluator(one, deciding_only=True).run()
    assert list(found.sets) == ["validation"] and found.metric == ACCURACY
    assert found.value() == found.deciding.values["accuracy"]


@pytest.mark.parametrize("reads_twice", [False, True])
def test_an_empty_test_stream_is_refused(reads_twice: bool) -> None:
    """A loss over no examples was 0, and so the best there is; a stream that cannot begin anew is empty later."""

    class Once(torch.utils.data.IterableDataset[object]):
        def __init__(self) -> None:
            self._left = iter([(torch.zeros(8), 0)] if reads_twice else [])

        def __iter__(self) -> Iterator[object]:
            return self._left

    with pytest.raises(DataError, match="a stream of at least 1 example, got 'an empty one'"):
        rueda.fit(replace(tiny_task(), test=Once()), tiny_task().recipe.change(epochs=2), progress=False)


def test_whole_numbers_that_are_no_accuracy_are_reported(capfd: pytest.CaptureFixture[str]) -> None:
    task = replace(tiny_task(), metric=lambda outputs, targets: 7 * (outputs.argmax(1) - targets).abs() + 1)
    rueda.fit(task, task.recipe.change(epochs=1), progress=False)
    said = capfd.readouterr().err
    assert "but it can only be from 0 to 1; return true or false, or floating-point numbers" in said


def test_a_batch_is_counted_once_although_memory_is_full_in_a_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss was added before the metric ran out of memory, and again with the halves of the batch."""

    def measure(outputs: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        if len(outputs) > 8:
            raise torch.OutOfMemoryError("no more")
        return outputs.argmax(1) == batch[1]

    monkeypatch.setattr(torch, "get_device_module", lambda *_: torch.cuda)  # whose cache is empty
    task = replace(tiny_task(), metric=None, metrics=(metrics.top_k(2), Metric(name="right", measure=measure)))
    torch.manual_seed(7)
    model, data = network().double(), task.load("test")
    found = evaluate(task, model, evaluation_loader(data, 32, World(), torch.float64), World())
    whole = replace(task, metrics=(metrics.top_k(2), metrics.accuracy()))
    wanted = evaluate(whole, model, evaluation_loader(data, 32, World(), torch.float64), World())
    assert found.num_examples == 101 and found.loss == pytest.approx(wanted.loss, rel=1e-12)
    assert found.values["right"] == wanted.values["accuracy"] and found.values["top-2"] == wanted.values["top-2"]


def test_weights_of_another_shape_are_refused() -> None:
    wrong = Metric(name="x", measure=lambda outputs, batch: (outputs[:, 0], torch.ones(len(outputs), 1)))
    with pytest.raises(TaskError, match=r"metric x: expected weights of the values' shape \[24\], got \[24, 1\]"):
        rueda.fit(replace(tiny_task(), metric=None, metrics=(wrong,)), progress=False)


def test_outputs_of_one_number_have_an_f1_and_an_area() -> None:
    outputs, targets = torch.tensor([[1.0], [2.0], [-1.0], [-2.0]]), torch.tensor([1, 0, 0, 1])
    for given in (outputs, outputs[:, 0]):
        assert metrics.f1().finish(metrics.f1().measure(given, (None, targets)).double()) == 0.5  # type: ignore[misc]
        assert metrics.auc().finish(metrics.auc().measure(given, (None, targets))) == 0.25  # type: ignore[misc]


@pytest.mark.parametrize(
    ("metric", "outputs", "targets"),
    [
        (metrics.accuracy(), (4, 1), (4,)),  # the largest of one is always the first class
        (metrics.accuracy(), (2, 3, 3), (2, 4)),
        (metrics.accuracy(), (2, 4, 5), (2, 4)),  # classes last
        (metrics.top_k(2), (2, 4, 5), (2, 4)),
        (metrics.f1(), (4,), (4, 1)),  # would be compared as 4 x 4
        (metrics.f1(), (4, 3), (3,)),
        (metrics.auc(), (4, 3), (4,)),
    ],
)
def test_outputs_of_another_shape_are_one_line(metric: Metric, outputs: tuple[int], targets: tuple[int]) -> None:
    with pytest.raises(TaskError, match=rf"metric {metric.name}: expected .* of .*shape") as caught:
        metric.measure(torch.zeros(outputs), (None, torch.zeros(targets, dtype=torch.int64)))  # type: ignore[misc]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: replace(tiny_task(), metrics=("accuracy",)), "Task.metrics: expected Metrics, got 'str'"),
        (lambda: replace(tiny_task(), metrics=(EVERY[0], EVERY[0])), "expected different names"),
        (lambda: replace(tiny_task(), validation=1.5), "expected a fraction between 0 and 1, got 1.5"),
        (lambda: replace(tiny_task(), test={}), "expected one set or more"),
        (lambda: replace(tiny_task(), test={"a": None, "train": None}), "a name other than train, validation, test"),
        (lambda: replace(tiny_task(), tolerance=-1.0), "Task.tolerance: expected 0 or more"),
        (lambda: Metric(name="loss", measure=lambda outputs, batch: outputs), "choose another one"),
        (lambda: Metric(name="x"), "expected a function of"),
        (lambda: Metric(name="x", measure=abs, combine="median"), "expected mean, sum, gather, loss"),
    ],
)
def test_mistakes_are_refused_in_one_line(make: object, said: str) -> None:
    with pytest.raises(TaskError, match=said) as caught:
        make()  # type: ignore[operator]
    assert "\n" not in str(caught.value)


def test_a_target_accuracy_needs_an_accuracy() -> None:
    """A mean absolute error below 0.9 is not an accuracy of 90 %."""
    task = rueda.load_task("table-regression")
    with pytest.raises(TaskError, match=r"target_accuracy of task table-regression: expected .* got 'MAE'; set target"):
        rueda.fit(task, task.recipe.change(target_accuracy=0.9), progress=False)
