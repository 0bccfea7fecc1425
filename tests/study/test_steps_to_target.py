"""Steps to a target: the curve from points that are known, the climb over rates, a small task, the file."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from rueda.errors import RecipeError, RunError, TaskError
from rueda.records import Recipe
from rueda.records.metric import LOSS
from rueda.records.steps_to_target import StepsToTarget
from rueda.report.study_tables import steps_table
from rueda.study import steps_to_target
from rueda.study.critical_batch import fit_curve
from rueda.study.steps_to_target import Reached, study_steps_to_target, tune, updates_to_target
from rueda.tasks.metrics import Metric
from rueda.train.update import Updater
from tinytask import tiny_task

BATCHES = [16, 32, 64, 128, 256, 512, 1024, 2048, 4096]


@pytest.mark.parametrize(("smallest", "critical"), [(100.0, 300.0), (1000.0, 64.0), (40.0, 2000.0)])
def test_the_constants_of_a_known_curve(smallest: float, critical: float) -> None:
    exact = [smallest * (1 + critical / batch) for batch in BATCHES]
    curve = fit_curve(BATCHES, exact)
    assert curve.smallest_updates == pytest.approx(smallest, rel=1e-4)
    assert curve.smallest_examples == pytest.approx(smallest * critical, rel=1e-4)
    assert curve.critical_batch == pytest.approx(critical, rel=1e-4)
    for batch, updates in zip(BATCHES, exact, strict=True):
        examples = updates * batch
        product = (updates / curve.smallest_updates - 1) * (examples / curve.smallest_examples - 1)
        assert product == pytest.approx(1.0, rel=1e-2)


@pytest.mark.parametrize(
    ("batches", "seeds", "noise", "tuning", "critical"),
    [
        (BATCHES, 1, 0.1, 0.0, 300),
        (BATCHES[::2], 1, 0.1, 0.0, 300),
        (BATCHES[::2], 3, 0.1, 0.0, 300),
        (BATCHES[::2], 3, 0.1, 0.2, 300),
        (BATCHES[::2], 1, 0.1, 0.0, 20_000),
        (BATCHES[::2], 3, 0.3, 0.0, 300),
    ],
    ids=["nine sizes", "five sizes", "three seeds", "tuned unequally", "beyond the largest batch", "30 % noise"],
)
def test_the_interval_holds_the_truth_as_often_as_it_says(
    batches: list[int], seeds: int, noise: float, tuning: float, critical: float
) -> None:
    """Of 1,000 intervals of 90 %, 900 hold the truth, with a deviation of 9.5; what tuning gets wrong is shared."""
    draws, held = np.random.default_rng(1), 0
    for _ in range(1000):
        shared = {batch: tuning * draws.standard_normal() for batch in batches}
        pairs = [(batch, shared[batch] + noise * draws.standard_normal()) for batch in batches for _ in range(seeds)]
        noisy = [100 * (1 + critical / batch) * math.exp(error) for batch, error in pairs]
        low, high = fit_curve([batch for batch, _ in pairs], noisy).interval
        held += (low or 0) <= critical <= (high or math.inf)
    assert held / 1000 == pytest.approx(0.9, abs=0.03)


def test_a_lack_of_fit_is_told_as_often_as_it_should_be() -> None:
    draws, called, unequal = np.random.default_rng(1), 0, 0
    for _ in range(500):
        pairs = [(batch, 0.1 * draws.standard_normal()) for batch in BATCHES[::2] for _ in range(3)]
        shared = {batch: 0.3 * draws.standard_normal() for batch in BATCHES}
        for scatter in (False, True):
            noisy = [100 * (1 + 300 / size) * math.exp(error + scatter * shared[size]) for size, error in pairs]
            told = fit_curve([size for size, _ in pairs], noisy).lack_of_fit
            assert told is not None
            called, unequal = called + (told < 0.1 and not scatter), unequal + (told < 0.1 and scatter)
    assert called / 500 == pytest.approx(0.1, abs=0.04)  # three deviations
    assert unequal / 500 > 0.8
    assert fit_curve(BATCHES, [100 * (1 + 300 / batch) for batch in BATCHES]).lack_of_fit is None


def test_points_without_a_bend_have_an_interval_without_an_end() -> None:
    noise = np.exp(0.05 * np.random.default_rng(0).standard_normal(len(BATCHES)))
    falling = fit_curve(BATCHES, [1e6 / batch * factor for batch, factor in zip(BATCHES, noise, strict=True)])
    level = fit_curve(BATCHES, [100 * factor for factor in noise])
    assert falling.interval[1] is None and falling.interval[0] is not None and falling.interval[0] > 4096
    assert level.interval[0] is None and level.interval[1] is not None and level.interval[1] < 16
    assert falling.interval_text.startswith("at least ") and level.interval_text == "at most 1"


def test_two_batch_sizes_are_too_few() -> None:
    with pytest.raises(RunError, match="three batch sizes or more, got 2"):
        fit_curve([1, 2, 2], [3, 2, 2])


@pytest.mark.parametrize(("best", "tried"), [(0.1, 5), (0.8, 7), (0.0125, 8), (0.1 * 2**0.5, 5)])
def test_the_climb_over_rates(best: float, tried: int) -> None:
    limits = []

    def trial(rate: float, limit: float) -> float | None:
        limits.append(limit)
        steps = 100 * 2 ** abs(math.log2(rate / best))
        return steps if steps < limit and rate < 10 else None

    found = tune(0.1, trial, 1e6)
    reached = {rate: steps for rate, steps in found.items() if steps is not None}
    assert min(reached, key=lambda rate: reached[rate]) == pytest.approx(best) and len(found) == tried
    assert limits == sorted(limits, reverse=True)  # no trial may take longer than the best before it


def test_nothing_reaches_the_target() -> None:
    assert set(tune(0.1, lambda rate, limit: None, 100).values()) == {None}


def test_a_first_rate_far_too_high() -> None:
    found = tune(1.6, lambda rate, limit: None if rate > 0.15 else 10.0, 100)
    assert list(found.values())[:6] == [None, None, None, None, None, 10.0] and 0.1 in found


def test_a_small_task_and_its_file(tmp_path: Path) -> None:
    options: dict[str, Any] = {"target_accuracy": 0.7, "folder": tmp_path, "epochs": 20}
    lines: list[str] = []
    study_steps_to_target(tiny_task(), batches=[4, 16], say=lines.append, **options)
    found = study_steps_to_target(tiny_task(), batches=[4, 16, 64], say=lines.append, **options)
    ends = [line.split(":")[0] for line in lines if "rate" not in line.split(":")[0]]
    assert ends == ["batch 4", "batch 16", "batch 64"]  # none twice
    assert sum(line.startswith("batch 16, rate ") for line in lines) > 2  # each trial is told
    points = found.points
    assert all(point.updates is not None and point.rate is not None for point in points)
    assert points[0].examples == pytest.approx(4 * points[0].updates)  # type: ignore[operator]
    assert found.fit is not None and found.fit.critical_batch > 0
    assert StepsToTarget.load(tmp_path) == found
    data = json.loads((tmp_path / "steps.json").read_text())
    assert data["kind"] == "steps-to-target" and [point["batch"] for point in data["points"]] == [4, 16, 64]
    assert data["points"][0]["regime"] is not None and data["fit"]["critical_batch"] > 0
    with pytest.raises(RunError, match="another target accuracy; choose another --folder"):
        study_steps_to_target(tiny_task(), batches=[4], **{**options, "target_accuracy": 0.6})
    for text in ("{", json.dumps({**data, "recipe": "rate ="}), json.dumps({**data, "recipe": "wheel = 3"})):
        (tmp_path / "steps.json").write_text(text)
        with pytest.raises(RunError, match=r"steps\.json: expected .*; remove .*steps\.json to begin anew$"):
            study_steps_to_target(tiny_task(), batches=[4], **options)


class Seen(NamedTuple):
    """What an update was made with."""

    examples: int
    rate: float
    sigma: float


def updates_of(recipe: Recipe, num_updates: int, monkeypatch: pytest.MonkeyPatch) -> list[Seen]:
    """Train without ever reaching the target, and give what each update was made with."""
    seen: list[Seen] = []
    original = Updater.update

    def update(self: Updater, batches: Any, *, rate: float, **options: Any) -> None:
        examples = sum(part.num_examples for parts in batches for part in parts)
        seen.append(Seen(examples, rate, self.sigma))
        original(self, batches, rate=rate, **options)

    monkeypatch.setattr(Updater, "update", update)
    assert updates_to_target(tiny_task(240), recipe, 2.0, num_updates) is None
    return seen


def test_the_batch_grows_as_the_recipe_says(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe(batch=24, epochs=3, growth_factor=2.0, milestones=(1.0, 2.0), largest_batch=96)
    seen = updates_of(recipe, 18, monkeypatch)
    assert [one.examples for one in seen] == [24] * 10 + [48] * 5 + [96] * 3


def test_the_schedule_follows_the_clock_of_a_growing_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warm-up of two epochs is over after 10 updates of 24 examples and 5 of 48, not after 20 updates."""
    recipe = Recipe(
        batch=24, base_batch=12, scaling="linear", epochs=3, rate=0.1, warmup_epochs=2, growth_factor=2.0,
        milestones=(1.0,), largest_batch=48,
    )  # fmt: skip
    rates = [one.rate for one in updates_of(recipe, 18, monkeypatch)]
    clock = [*range(10), *range(10, 20, 2), 20, 22, 24]
    assert rates == pytest.approx([0.1 + 0.1 * min(1, now / 20) for now in clock])


def test_gradient_noise_is_added_where_the_recipe_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = updates_of(Recipe(batch=24, base_batch=6, gradient_noise=1.0), 3, monkeypatch)
    assert [one.sigma for one in seen] == pytest.approx([math.sqrt(3)] * 3)


def test_the_batch_follows_the_noise_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe(
        batch=8, epochs=4, rate=0.05, noise_scale_every=2, noise_scale_memory=8, growth_from_noise=True,
        largest_batch=96,
    )  # fmt: skip
    examples = [one.examples for one in updates_of(recipe, 60, monkeypatch)]
    assert examples == sorted(examples) and examples[0] == 8 < examples[-1]


def test_examples_of_a_growing_batch_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe(batch=4, rate=0.002, epochs=4, growth_factor=4.0, milestones=(1.0,), largest_batch=16)
    reached = updates_to_target(tiny_task(240), recipe, 0.7, 1000)
    assert reached is not None and reached.updates > 60  # 60 updates of 4, then 15 of 16 an epoch
    assert reached.examples == pytest.approx(240 + 16 * (reached.updates - 60))


def test_a_batch_that_cannot_grow_is_refused_before_any_is_measured() -> None:
    said: list[str] = []
    growing = ["growth_factor=2", "milestones=1", "epochs=2", "largest_batch=32"]
    with pytest.raises(RecipeError, match="batch 64: maximum: expected at least the base batch, got 32"):
        study_steps_to_target(tiny_task(), target_accuracy=0.5, batches=[16, 64], settings=growing, say=said.append)
    assert said == []


def test_seeds_that_do_not_reach_the_target_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # On S = 100 (1 + 300 / B); at batch 64 the seeds 0, for tuning, and 1 reach the target and no other; at 128 only 0.
    def trained(task: object, recipe: Recipe, *_: object) -> Reached | None:
        if recipe.batch == 64:
            return Reached(45.0 + recipe.seed, 46.0 * 64) if recipe.seed <= 1 else None
        if recipe.batch == 128:
            return Reached(45.0, 45.0 * 128) if recipe.seed == 0 else None
        return Reached(100 * (1 + 300 / recipe.batch), 100.0 * (recipe.batch + 300))

    monkeypatch.setattr(steps_to_target, "updates_to_target", trained)
    lines: list[str] = []
    options: dict[str, Any] = {"target_accuracy": 0.7, "seeds": 4, "epochs": 10**9}
    found = study_steps_to_target(
        tiny_task(), batches=[8, 16, 32, 64, 128], folder=tmp_path, say=lines.append, **options
    )  # fmt: skip
    *_, last, none = found.points
    assert none.rate is not None and (none.updates, none.seeds, none.complete) == (None, (), False)
    assert (last.updates, last.num_seeds, last.seeds, last.complete) == (
        46.0,
        4,
        (46.0,),
        False,
    )  # not the seed of the tuning
    assert found.fit is not None and found.fit.critical_batch == pytest.approx(300, rel=1e-3)
    assert [point["in_fit"] for point in json.loads((tmp_path / "steps.json").read_text())["points"]] == [
        True, True, True, False, False,
    ]  # fmt: skip
    assert sum(", seed " in line for line in lines) == 5 * 4  # each training of a fresh seed is told
    assert any(line.startswith("batch 64, rate ") and "seed 3: not reached" in line for line in lines)
    (told,) = (line for line in lines if line.startswith("batch 64: "))
    assert told.startswith("batch 64: 46 updates") and told.endswith("(1 of 4 seeds reached the target)")
    assert lines[-1].startswith("batch 128: none of 4 fresh seeds reached the target at rate ")
    assert study_steps_to_target(tiny_task(), batches=[16, 32, 64], **options).fit is None


@pytest.mark.parametrize(
    ("settings", "epochs", "milestones"),
    [([], 2, ()), (["schedule=cosine"], 16, ()), (["schedule=step", "milestones=1"], 16, (8.0,)),
     (["growth_factor=2", "milestones=1", "largest_batch=64"], 2, (1.0,))],
    ids=["constant", "cosine", "step", "growth"],
)  # fmt: skip
def test_a_schedule_is_laid_over_the_limit(
    settings: list[str], epochs: int, milestones: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Recipe] = []

    def trained(task: object, recipe: Recipe, *_: object) -> Reached:
        seen.append(recipe)
        return Reached(100.0, 400.0)

    monkeypatch.setattr(steps_to_target, "updates_to_target", trained)
    found = study_steps_to_target(
        tiny_task(), target_accuracy=0.7, batches=[4], settings=["epochs=2", *settings]
    )  # fmt: skip
    assert {(recipe.epochs, recipe.milestones) for recipe in seen} == {(epochs, milestones)} and found.epochs == 16
    assert Recipe.from_toml(found.recipe).epochs == 2  # the recipe is recorded as it was given


def test_a_decaying_rate_reaches_the_target_where_a_constant_one_does() -> None:
    """After the two epochs of its recipe, a cosine would have come down to rate 0, far from the target."""
    options: dict[str, Any] = {"target_accuracy": 0.8, "batches": [8]}
    level, cosine = (
        study_steps_to_target(tiny_task(), settings=["epochs=2", "rate=0.01", f"schedule={name}"], **options).points[0]
        for name in ("constant", "cosine")
    )
    assert level.updates is not None and cosine.updates is not None
    assert cosine.updates < 1.5 * level.updates


def test_older_files_and_other_states_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps_to_target, "updates_to_target", lambda *_: Reached(100.0, 400.0))
    options: dict[str, Any] = {"target_accuracy": 0.7, "folder": tmp_path}
    mine, text = tmp_path / "mine.py", f"import sys\nsys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
    text += "from tinytask import tiny_task\ntask = tiny_task()\n"
    mine.write_text(text)
    study_steps_to_target(str(mine), batches=[4], **options)
    mine.write_text(text + "# changed\n")
    with pytest.raises(RunError, match="made with another task file; choose another --folder"):
        study_steps_to_target(str(mine), batches=[4, 8], **options)
    old = json.loads((tmp_path / "steps.json").read_text())
    del old["task_file"]
    old["recipe"] = old["recipe"].replace("patience = 1\n", "")  # a field that an older Rueda did not have
    (tmp_path / "steps.json").write_text(json.dumps(old))
    assert len(study_steps_to_target(str(mine), batches=[4, 8], **options).points) == 2


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"target_accuracy": 85}, RecipeError),
        ({"batches": []}, RecipeError),
        ({"epochs": 0}, RecipeError),
        ({"seeds": 0}, RecipeError),
        ({"batches": [0]}, RecipeError),
        ({"batches": [9999]}, RecipeError),
        ({"task": "linear"}, TaskError),
        ({"settings": ["target_accuracy=0.8"]}, RecipeError),
        ({"settings": ["workers=2"]}, RecipeError),
    ],
)
def test_mistakes(changes: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        study_steps_to_target(**{"task": tiny_task(), "target_accuracy": 0.7, **changes})


def test_a_loss_is_a_target_too(tmp_path: Path) -> None:
    options: dict[str, Any] = {"batches": [5, 10], "epochs": 40, "folder": tmp_path}
    found = study_steps_to_target("linear", target=200.0, **options)
    assert found.metric == LOSS and found.value == 200.0 and found.target_accuracy is None
    assert all(point.updates is not None for point in found.points) and StepsToTarget.load(tmp_path) == found
    assert steps_table(found).title == "Updates to 200 test loss"
    with pytest.raises(RunError, match="made with another target"):
        study_steps_to_target("linear", target=150.0, **options)
    with pytest.raises(TaskError, match="--target-metric of task linear: expected loss, got 'AUC'"):
        study_steps_to_target("linear", target=0.5, target_metric="AUC", **options)
    with pytest.raises(RecipeError, match="leave one of them out"):
        study_steps_to_target("linear", target=0.5, target_accuracy=0.5, **options)
    with pytest.raises(RecipeError, match="--target: expected the value to reach"):
        study_steps_to_target("linear", **options)


def test_an_error_that_is_low_at_once_is_reached_within_the_first_update() -> None:
    """A fraction of which lower is better was taken to begin at 0, and so reached its target before the training."""
    error = Metric(
        name="error", measure=lambda outputs, batch: torch.full((len(outputs),), 0.1), percent=True,
        higher_is_better=False,
    )  # fmt: skip
    task = replace(tiny_task(), metrics=(error,))
    found = updates_to_target(task, task.recipe, 0.5, 10, error.info)
    assert found is not None and found.updates == pytest.approx(1 - 0.4 / 0.9, rel=1e-6)
