"""One step: what it counts, where it goes to the next epoch, what it is told, and who calls it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import rueda
from harness import workers
from rueda.errors import NonFiniteError
from rueda.measure.noise import measure_noise
from rueda.measure.steps import Stepper
from rueda.optim import AdaScale
from rueda.records import Recipe, Row
from rueda.study.steps_to_target import updates_to_target
from rueda.study.throughput import study_throughput
from rueda.tasks.task import squared_error
from rueda.train.training import StepResult, Training
from rueda.train.update import Updater
from rueda.world import World, current
from tinytask import clouds, parameters, rehearsal, run, tiny_task, training

CASES = {
    "plain": Recipe(batch=24, epochs=3, rate=0.1, model={"dropout": 0.3}),
    "growth": Recipe(batch=24, epochs=3, growth_factor=2.0, milestones=(1.0, 2.0), largest_batch=96),
    "growth by the noise scale": Recipe(
        batch=8, epochs=3, rate=0.05, noise_scale_every=2, noise_scale_memory=8, growth_from_noise=True,
        largest_batch=96,
    ),
    "noise, warm-up": Recipe(batch=24, base_batch=8, epochs=3, gradient_noise=1.0, warmup_epochs=1, schedule="cosine"),
    "padded": Recipe(batch=23, epochs=3, remainder="pad"),
}  # fmt: skip


def steps_like_the_loop(job: Training, other: Training) -> None:
    """Nothing but steps gives the model, the counts and the rates of the whole loop."""
    rows: list[Row] = []
    finished = run(job, rows)
    results: list[StepResult] = []
    while other.state.step < job.state.step:
        results.append(other.step())
    assert torch.equal(parameters(finished.model), parameters(other.model))
    for name in ("step", "examples", "clock", "batch"):
        assert getattr(other.state, name) == getattr(job.state, name), name
    ends = [number for number, result in enumerate(results, 1) if result.epoch_ended]
    assert ends == [row.step for row in rows if row.kind == "epoch"]
    assert sum(result.num_examples for result in results) == other.state.examples
    assert [results[end - 1].rate for end in ends] == [row.rate for row in rows if row.kind == "epoch"]


@pytest.mark.parametrize("name", CASES)
def test_steps_are_those_of_the_loop(name: str) -> None:
    steps_like_the_loop(*(training(tiny_task(480), CASES[name]) for _ in range(2)))


@workers(2)
def test_steps_are_those_of_the_loop_on_two_workers() -> None:
    for name in ("plain", "growth", "growth by the noise scale"):
        steps_like_the_loop(*(training(tiny_task(480), CASES[name]) for _ in range(2)))
    steps_like_the_loop(*(training(tiny_task(480), CASES["plain"].change(adascale=True)) for _ in range(2)))


def test_steps_of_a_rehearsal() -> None:
    recipe = CASES["plain"].change(workers=3, batch=8, adascale=True)
    steps_like_the_loop(*(rehearsal(tiny_task(480), recipe) for _ in range(2)))


def test_the_batch_grows_with_the_epochs_and_the_clock_with_the_batch() -> None:
    job = training(tiny_task(240), CASES["growth"])
    results = [job.step() for _ in range(10 + 5 + 2 + 1)]
    assert [result.num_examples for result in results] == [24] * 10 + [48] * 5 + [96] * 2 + [96]
    assert job.state.clock == 10 + 2 * 5 + 4 * 3 and job.state.epoch == 3
    assert job.state.seconds > 0


def test_the_clock_of_adascale_is_the_sum_of_its_gains() -> None:
    job = rehearsal(tiny_task(480), Recipe(workers=4, batch=12, rate=0.05, adascale=True))
    gains = [job.step().rate / 0.05 for _ in range(15)]
    assert isinstance(job.optimizer, AdaScale) and max(gains) > 1.05
    assert job.state.clock == job.optimizer.clock == pytest.approx(sum(gains))


def test_what_a_measurement_asks_for() -> None:
    class Timer:
        def __init__(self) -> None:
            self.seen: list[str] = []

        def begin(self) -> None:
            self.seen.append("begin")

        def mark(self, stage: str) -> None:
            self.seen.append(stage)

    job = training(tiny_task(), CASES["growth"])
    job.fix_batch(40)
    timer = Timer()
    results = [job.step(rate=0.25, timer=timer, measure_noise=True) for _ in range(14)]
    assert timer.seen == ["begin", "data", *["forward", "backward"] * 2, "optimizer"] * 14  # two halves
    assert {(result.rate, result.num_examples) for result in results} == {(0.25, 40)}  # also where the recipe grows
    assert [result.epoch_ended for result in results[:7]] == [False] * 5 + [True, False]
    assert all(result.reading is not None and result.reading.num_parts == 2 for result in results)
    assert job.step().reading is None and job.step().rate == job.recipe.rate


def test_a_refused_gradient_does_not_count() -> None:
    def infinite(outputs: Tensor, targets: Tensor) -> Tensor:
        return squared_error(outputs.sum(1) * 1e30, targets.float())

    job = training(replace(tiny_task(), loss=infinite), Recipe(batch=24, optimizer="lamb"))
    with pytest.raises(NonFiniteError):
        job.step()
    assert (job.state.step, job.state.examples, job.state.clock) == (0, 0, 0.0)


def test_the_time_of_an_evaluation_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("rueda.train.training.time.perf_counter", lambda: now[0])
    job = training(tiny_task(), CASES["plain"])
    now[0] = 5.0  # before the first step
    original = job.updater.update
    monkeypatch.setattr(job.updater, "update", lambda *a, **k: (now.__setitem__(0, now[0] + 2), original(*a, **k)))
    job.step()
    now[0] += 100.0
    job.leave_out_time()
    job.step()
    assert job.state.seconds == 4.0


# Who steps: every loop of the project, and each step is seeded, fetched and counted.


class Calls:
    """Counts what belongs to a step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[StepResult] = []
        self.seeded: list[int] = []
        self.updated: list[int] = []
        step, begin, update = Training.step, Updater.begin, Updater.update

        def counted(training: Training, **options: Any) -> StepResult:
            self.steps.append(step(training, **options))
            return self.steps[-1]

        def begun(updater: Updater, number: int) -> None:
            self.seeded.append(number)
            begin(updater, number)

        def updating(updater: Updater, *batch: Tensor, step: int, **options: Any) -> None:
            self.updated.append(step)
            update(updater, *batch, step=step, **options)

        monkeypatch.setattr(Training, "step", counted)
        monkeypatch.setattr(Updater, "begin", begun)
        monkeypatch.setattr(Updater, "update", updating)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


class Drawing(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Examples that are drawn when they are read: the loader must be seeded for each step."""

    def __init__(self) -> None:
        self.data, self.drawn = clouds(48, 1), list[float]()

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        noise = torch.randn(8)
        self.drawn.append(float(noise[0]))
        return self.data.inputs[index] + noise, self.data.targets[index]


RECIPE = Recipe(batch=12, epochs=2, rate=0.05)
LOOPS: dict[str, Callable[[rueda.Task], object]] = {
    "train": lambda task: rueda.fit(task, RECIPE, progress=False),
    "steps to target": lambda task: updates_to_target(task, RECIPE, 2.0, 8),
    "throughput": lambda task: study_throughput(task, batches=[12], seconds=0.05, progress=False),
    "step time": lambda task: Stepper(task, RECIPE, World()).block(12, 8, stages=True),
    "noise scale": lambda task: measure_noise(task, RECIPE, World(), seconds=60, intervals=1),
}


@pytest.mark.parametrize("loop", LOOPS)
def test_every_loop_makes_the_same_steps(loop: str, calls: Calls) -> None:
    """Each update comes from Training.step, and a data set that draws is given the same numbers by all loops."""
    data = Drawing()
    LOOPS[loop](replace(tiny_task(), train=data, recipe=RECIPE))
    count = len(calls.steps)
    assert count >= 8 or loop == "throughput"
    assert calls.updated == list(range(count))
    assert sorted(set(calls.seeded) - {count}) == calls.updated  # an epoch's end is seeded, too
    expected = []
    for step in range(count):
        rueda.world.seeds.seed_worker(0, 0, step)
        expected += [float(torch.randn(8)[0]) for _ in range(12)]
    assert data.drawn == expected


@workers(2)
def test_workers_take_the_same_steps() -> None:
    job = training(tiny_task(), CASES["growth"])
    results = [job.step() for _ in range(12)]
    assert len({str([(one.rate, one.num_examples, one.epoch_ended) for one in each])
                for each in current().all_gather_object(results)}) == 1  # fmt: skip
