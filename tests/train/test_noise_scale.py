"""The noise scale inside the loop: from every source the truth, under every technique the same, and resumable."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rueda
from harness import workers
from rueda.errors import RecipeError
from rueda.optim.batch_growth import from_noise_scale
from rueda.records import Recipe, Run
from rueda.records.run import NoiseRow
from rueda.tasks.task import Task, squared_error
from rueda.train import rehearsal as rehearsal_module
from rueda.train.checkpoint import latest_checkpoint
from rueda.train.micro_batches import MicroBatch, WorkerBatches
from rueda.train.training import Training
from rueda.world import World, current
from tinytask import parameters, rehearsal, run, stop_before, tiny_task, training

NUM_EXAMPLES, DIMENSIONS = 3072, 6
STILL = 1e-30
"""a rate at which the weights stay where they are"""


class Line(nn.Module):
    """y = w·x, at weights that are one off in every direction."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.full((DIMENSIONS,), 1.0))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs @ self.w


def known_task() -> tuple[Task, float, float]:
    """Least squares on Gaussian inputs, with S and |G|² of its training set at the start."""
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(NUM_EXAMPLES, DIMENSIONS, generator=generator)
    targets = 2.0 * torch.randn(NUM_EXAMPLES, generator=generator)  # the best weights are 0
    data = rueda.Arrays(inputs, targets)
    gradients = 2 * inputs.double() * (inputs.double().sum(1) - targets.double())[:, None]
    square = float(gradients.mean(0).square().sum())
    variance = float(gradients.square().sum(1).mean()) - square
    test = rueda.Arrays(inputs[:8], targets[:8])
    return Task(name="line", model=Line, train=data, test=test, loss=squared_error, metric=None), variance, square


def noise_rows(job: Training) -> list[NoiseRow]:
    """Run a training without a folder and give what it would write."""
    assert job.noise is not None
    rows: list[NoiseRow] = []
    original = job.noise.flush

    def flush() -> list[NoiseRow]:
        found = original()
        rows.extend(found)
        return found

    job.noise.flush = flush  # type: ignore[method-assign]
    run(job)
    return rows


def check_truth(job: Training, source: str) -> None:
    _, variance, square = known_task()
    rows = noise_rows(job)
    assert len(rows) == job.state.step and {row.noise.source for row in rows} == {source}
    last = rows[-1].noise
    truth = variance / square
    assert last.low < truth < last.high < 1.6 * last.low, (last, truth)
    assert last.variance == pytest.approx(variance, rel=0.1)
    assert last.epochs == pytest.approx(job.state.examples / NUM_EXAMPLES)
    assert job.noise is not None and job.noise.current == last


KNOWN = Recipe(rate=STILL, epochs=4, noise_scale_every=1, noise_scale_memory=100_000, precision="float64")


@workers(2)
def test_two_real_workers_find_the_truth() -> None:
    check_truth(training(known_task()[0], KNOWN.change(batch=16)), "workers")


@workers(2)
def test_two_workers_that_accumulate_find_the_truth() -> None:
    check_truth(training(known_task()[0], KNOWN.change(batch=5, accumulate=3)), "workers")


@pytest.mark.parametrize("at_once", [1, 24, 1000])
def test_rehearsed_workers_find_the_truth(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One by one, three at a time (two parts of 3 and one of 2), and all but together (two parts of 4)."""
    monkeypatch.setattr(rehearsal_module, "GROUP_EXAMPLES", at_once)
    check_truth(rehearsal(known_task()[0], KNOWN.change(workers=8, batch=8, epochs=8)), "virtual-workers")


def test_micro_batches_find_the_truth() -> None:
    check_truth(training(known_task()[0], KNOWN.change(batch=16, accumulate=2)), "micro-batches")
    uneven = training(known_task()[0], KNOWN.change(batch=40))
    uneven.set_batch = lambda: setattr(uneven.updater, "micro_batch", 17)  # type: ignore[method-assign]
    check_truth(uneven, "micro-batches")  # parts of 17, 17 and 6


@pytest.mark.parametrize("batch", [32, 33])
def test_halves_find_the_truth(batch: int) -> None:
    check_truth(training(known_task()[0], KNOWN.change(batch=batch)), "halves")


@pytest.mark.parametrize("at_once", [1, 1000])
@workers(4)
def test_rehearsed_workers_read_what_real_ones_read(at_once: int) -> None:
    recipe = Recipe(
        workers=4, batch=12, rate=0.05, noise_scale_every=1, precision="float64", noise_scale_groups=True,
        model={"batch_norm": True, "dropout": 0.3},
    )  # fmt: skip
    real = noise_rows(training(tiny_task(240), recipe))
    assert len({str(rows) for rows in current().all_gather_object([row.noise for row in real])}) == 1  # bit for bit
    if current().is_main:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rehearsal_module, "GROUP_EXAMPLES", at_once)
            virtual = noise_rows(rehearsal(tiny_task(240), recipe))
        assert len(virtual) == len(real) == 4 * 25  # of the whole and of three layers
        for one, other in zip(virtual, real, strict=True):
            assert one.noise.group == other.noise.group and one.examples == other.examples
            if at_once == 1:
                assert one.noise.variance == pytest.approx(other.noise.variance, rel=1e-9)
                assert one.noise.square == pytest.approx(other.noise.square, rel=1e-9, abs=1e-12)
        last = (virtual[-4].noise, real[-4].noise)  # two parts of two workers: other numbers, the same truth
        assert last[0].low < last[1].high and last[1].low < last[0].high
    current().barrier()


def test_groups_add_up() -> None:
    recipe = Recipe(batch=24, rate=0.05, epochs=1, accumulate=2, noise_scale_every=2, noise_scale_groups=True)
    rows = noise_rows(training(tiny_task(480), recipe))
    whole = [row.noise for row in rows if row.noise.group is None]
    assert [found.step for found in whole] == [2, 4, 6, 8, 10]
    for found in whole:
        parts = [row.noise for row in rows if row.noise.step == found.step and row.noise.group is not None]
        assert [part.group for part in parts] == ["0", "3"]
        assert sum(part.variance for part in parts) == pytest.approx(found.variance, rel=1e-12)
        assert sum(part.square for part in parts) == pytest.approx(found.square, rel=1e-9)


# Measuring changes nothing, and nothing changes the measurement.

BASE = Recipe(batch=24, epochs=2, rate=0.05)
UNCHANGED = {
    "micro-batches": BASE.change(batch=8, accumulate=3),
    "batch norm, halves beside the training": BASE.change(model={"batch_norm": True}),
    "batch norm, micro-batches": BASE.change(batch=8, accumulate=3, model={"batch_norm": True}),
    "gradient noise": BASE.change(batch=8, accumulate=3, base_batch=8, gradient_noise=1.0),
    "clipping": BASE.change(batch=8, accumulate=3, clip=0.1),
    "dropout": BASE.change(batch=8, accumulate=3, model={"dropout": 0.3}),
}


@pytest.mark.parametrize("name", UNCHANGED)
def test_measuring_leaves_the_training_as_it_is(name: str) -> None:
    recipe = UNCHANGED[name]
    plain, measured = (training(tiny_task(), each) for each in (recipe, recipe.change(noise_scale_every=1)))
    first, second = run(plain), run(measured)
    assert torch.equal(parameters(first.model), parameters(second.model))
    for buffer, other in zip(first.model.buffers(), second.model.buffers(), strict=True):
        assert torch.equal(buffer, other)
    assert first.row is not None and second.row is not None
    assert (second.row.train_loss, second.row.test_correct) == (first.row.train_loss, first.row.test_correct)
    assert first.noise_scale is None and second.noise_scale is not None and second.noise_scale.steps == 20
    assert (second.row.noise_scale, second.row.noise_scale_low) == (second.noise_scale.value, second.noise_scale.low)


class Counts(nn.Module):
    """Counts its forward passes in a buffer, as an exponential average or a codebook would change one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.passes += 1
        return inputs


def test_a_measurement_restores_buffers_of_every_layer() -> None:
    task = replace(tiny_task(), model=lambda: nn.Sequential(nn.Linear(8, 3), nn.BatchNorm1d(3), Counts()))
    measured = training(task, BASE.change(noise_scale_every=1))
    for _ in range(5):
        measured.step()
    assert measured.updater.source == "halves" and int(measured.model[2].passes) == 5


@pytest.mark.parametrize("model", [{}, {"batch_norm": True}])
def test_halves_leave_the_training_as_it_is_up_to_rounding(model: dict[str, Any]) -> None:
    """Also with ghosts that lie within the halves."""
    recipe = BASE.change(model=model, precision="float64", ghost_batch=6 if model else None)
    plain, measured = (training(tiny_task(), each) for each in (recipe, recipe.change(noise_scale_every=1)))
    assert torch.allclose(parameters(run(plain).model), parameters(run(measured).model), rtol=1e-10)
    assert measured.updater.source == "halves"


def test_ghosts_within_the_halves_are_not_computed_twice() -> None:
    seen: list[int] = []
    job = training(tiny_task(), BASE.change(epochs=1, ghost_batch=6, model={"batch_norm": True}, noise_scale_every=2))
    job.model[0].register_forward_hook(lambda module, inputs, output: seen.append(len(inputs[0])))  # type: ignore[index]
    job.updater._gradients([[MicroBatch((torch.randn(24, 8), torch.zeros(24, dtype=torch.int64)), 24)]], 0, True)
    assert seen == [12, 12]
    three_ghosts = MicroBatch((torch.randn(18, 8), torch.zeros(18, dtype=torch.int64)), 18)  # no halves
    job.updater._gradients([[three_ghosts]], 0, True)
    assert seen[2:] == [18, 9, 9]


def first_noise(recipe: Recipe) -> tuple[float, float]:
    found = noise_rows(training(tiny_task(), recipe.change(noise_scale_every=1, epochs=1)))[0].noise
    return found.variance, found.square


@pytest.mark.parametrize(
    "changes", [{"clip": 1e-3}, {"weight_decay": 0.1}, {"additive_noise": 1.0}, {"optimizer": "lamb"}]
)
def test_norms_are_taken_before_anything_is_done_to_the_gradient(changes: dict[str, Any]) -> None:
    assert first_noise(BASE.change(**changes)) == first_noise(BASE)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_mixed_precision_is_unscaled(accumulate: int) -> None:
    """The scaler multiplies gradients by 65,536: S would be four billion times too large."""
    recipe = BASE.change(batch=24 // accumulate, accumulate=accumulate)
    exact, half, brain = (first_noise(recipe.change(precision=name)) for name in ("float32", "fp16", "bf16"))
    assert half == pytest.approx(exact, rel=0.02) and brain == pytest.approx(exact, rel=0.1)


@workers(2)
def test_mixed_precision_on_two_workers() -> None:
    exact, half = (first_noise(BASE.change(precision=name)) for name in ("float32", "fp16"))
    assert half == pytest.approx(exact, rel=0.02)


def test_an_overflow_says_nothing() -> None:
    """The first scale is far too large for float16: the scaler passes over those updates, and so does the log."""
    job = training(tiny_task(), BASE.change(precision="fp16", noise_scale_every=1))
    job.updater.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**28)
    rows = noise_rows(job)
    assert 0 < len(rows) < job.state.step
    assert all(math.isfinite(row.noise.variance) for row in rows)


@workers(2)
def test_adascale_and_the_noise_scale_share_one_meter() -> None:
    recipe = BASE.change(adascale=True)
    plain, both = training(tiny_task(), recipe), training(tiny_task(), recipe.change(noise_scale_every=2))
    run(plain)
    rows = noise_rows(both)
    assert torch.equal(parameters(plain.model), parameters(both.model)) and plain.state.clock == both.state.clock
    alone = noise_rows(training(tiny_task(), BASE.change(noise_scale_every=1, epochs=1)))
    # AdaScale's first update equals none; the second is at the same weights only where the gain was 1.
    assert len(rows) == both.state.step // 2
    first = noise_rows(training(tiny_task(), recipe.change(noise_scale_every=1, epochs=1)))[0].noise
    assert first.variance == pytest.approx(alone[0].noise.variance, rel=1e-12)


@workers(2)
def test_adascale_passes_over_an_overflow() -> None:
    """An update that the scaler skips must not leave its norms to the next one."""
    job = training(tiny_task(), BASE.change(precision="fp16", adascale=True))
    job.updater.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**28)
    run(job)
    gain = job.rate / 0.05
    assert 1.0 <= gain <= 2.0 and job.state.clock - gain < 20 <= job.state.clock  # one worker makes 20 steps


# Rows, resume.

RESUME = Recipe(
    batch=12, epochs=2, rate=0.05, noise_scale_every=1, noise_scale_memory=10, growth_from_noise=True,
    largest_batch=96, checkpoint_every=7, log_every=5,
)  # fmt: skip


def check_resume(folder: Path, stops: tuple[int, ...], **options: Any) -> None:
    recipe = RESUME.change(**options)
    rehearse = recipe.workers > current().size
    whole = rueda.fit(tiny_task(600), recipe, folder=folder / "whole", progress=False, rehearse=rehearse)
    for stop in stops:
        with pytest.MonkeyPatch.context() as patch:
            stop_before(patch, stop)
            with pytest.raises(RuntimeError, match="stop"):
                rueda.fit(
                    tiny_task(600), recipe, folder=folder / "stopped", progress=False, resume=True, rehearse=rehearse
                )
        current().barrier()
    again = rueda.fit(tiny_task(600), recipe, folder=folder / "stopped", progress=False, resume=True, rehearse=rehearse)
    assert torch.equal(parameters(whole.model), parameters(again.model))
    rows, others = (
        [
            replace(row, seconds=0, images_per_second=0, train_loss=0, train_accuracy=0)
            for row in Run(folder / name).rows()
        ]
        for name in ("whole", "stopped")
    )
    assert rows == others
    noises, again_noises = (
        [replace(row, seconds=0) for row in Run(folder / name).noise_rows()] for name in ("whole", "stopped")
    )
    key = lambda row: (row.noise.step, row.noise.group or "")  # noqa: E731
    assert sorted(noises, key=key) == sorted(again_noises, key=key)  # a checkpoint may bring rows forward
    first, second = (latest_checkpoint(folder / name / "checkpoints") for name in ("whole", "stopped"))
    assert first is not None and second is not None
    assert first[1]["noise"] == second[1]["noise"] and first[1]["place"]["batch"] == second[1]["place"]["batch"]
    assert {row.global_batch for row in noises} > {12 * recipe.workers}  # it did grow
    assert len(noises) == rows[-1].step


def test_resume_on_one_worker(tmp_path: Path) -> None:
    check_resume(tmp_path, (9, 19))


def test_resume_of_a_rehearsal(tmp_path: Path) -> None:
    check_resume(tmp_path, (9, 19), workers=2)


@workers(2)
def test_resume_on_two_workers(tmp_path: Path) -> None:
    check_resume(tmp_path, (9, 19), workers=2)


def test_rows_are_read_back(tmp_path: Path) -> None:
    recipe = Recipe(batch=24, rate=0.05, epochs=2, noise_scale_every=3, noise_scale_groups=True)
    result = rueda.fit(tiny_task(), recipe, folder=tmp_path, progress=False)
    run = Run(tmp_path)
    found = run.noise_scales()
    assert [one.step for one in found] == [3, 6, 9, 12, 15, 18] and found[-1] == result.noise_scale
    assert found[0].high == math.inf  # one step has no interval; JSON says null
    assert [one.group for one in run.noise_scales("0")] == ["0"] * 6
    row = run.noise_rows()[0]
    assert row.noise == found[0] and row.global_batch == 24 and row.noise.source == "halves"
    epoch = run.rows("epoch")[-1]
    assert epoch.noise_scale_low == found[-1].low and run.rows("epoch")[0].noise_scale is not None
    assert Recipe.from_toml(recipe.to_toml()) == recipe


# The batch follows the noise scale.

GROWTH = Recipe(
    batch=8, epochs=4, rate=0.05, noise_scale_every=2, noise_scale_memory=8, growth_from_noise=True, largest_batch=192,
)  # fmt: skip


def check_growth(job: Training) -> None:
    """The batch is what the rows and `from_noise_scale` say, on every worker, and every example counts once."""
    recipe, examples = job.recipe, []
    original = job.updater.update

    def update(batches: WorkerBatches, **options: Any) -> None:
        examples.append(sum(part.num_examples for parts in batches for part in parts) * job.world.size)
        original(batches, **options)

    job.updater.update = update  # type: ignore[method-assign]
    rows = noise_rows(job)
    batch = wanted = recipe.global_batch
    expected = []
    by_step = {row.noise.step: (number, row.noise) for number, row in enumerate(rows, 1)}
    decided = 0
    for step in range(1, job.state.step + 1):
        expected.append(batch)
        number = max((n for s, (n, _) in by_step.items() if s <= step), default=0)
        if step % 16 == 0 and number // 8 > decided:
            decided = number // 8
            low = rows[number - 1].noise.low
            wanted = from_noise_scale(low, current_batch=wanted, multiple=recipe.workers * 8)
            batch = min(wanted, 192)
    assert examples == expected
    assert max(examples) > recipe.global_batch and max(examples) <= 192
    assert sorted(examples) == examples
    assert min(job.state.batch, 192) == max(examples)
    assert job.rate == pytest.approx(0.05 * max(examples) / job.state.batch)  # the noise scale asks for more
    assert len(set(job.world.all_gather_object(tuple(examples)))) == 1


def test_growth_on_one_worker() -> None:
    check_growth(training(tiny_task(960), GROWTH))


def test_growth_of_a_rehearsal() -> None:
    check_growth(rehearsal(tiny_task(960), GROWTH.change(workers=3)))


@workers(2)
def test_growth_on_two_workers() -> None:
    check_growth(training(tiny_task(960), GROWTH))


@workers(3)
def test_growth_on_three_workers() -> None:
    check_growth(training(tiny_task(960), GROWTH))


# What makes no sense is refused.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"noise_scale_every": 0}, "noise_scale_every: expected a positive number, got 0"),
        ({"noise_scale_every": 1, "noise_scale_memory": 1}, "is too short for an average"),
        ({"growth_from_noise": True}, "growth_from_noise needs measurements"),
        ({"noise_scale_groups": True}, "noise_scale_groups needs measurements"),
        ({"noise_scale_every": 1, "batch": 1}, "the global batch is 1"),
        ({"noise_scale_every": 1, "sync_batch_norm": True}, "sync_batch_norm mixes them"),
        (
            {"noise_scale_every": 1, "growth_from_noise": True, "growth_factor": 2.0, "milestones": (1.0,)},
            "both decide when the batch grows",
        ),
        ({"noise_scale_every": 1, "growth_from_noise": True, "adascale": True}, "what a larger batch means"),
    ],
)
def test_contradictions_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message) as caught:
        Recipe(**changes)
    assert "\n" not in str(caught.value)


def test_too_few_examples_for_halves_with_batch_norm() -> None:
    recipe = Recipe(batch=2, epochs=1, noise_scale_every=1, model={"batch_norm": True})
    with pytest.raises(RecipeError, match="2 examples are too few to normalise; set batch to 4 or more"):
        run(training(tiny_task(), recipe))
    assert World().size == 1
