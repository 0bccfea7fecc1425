"""The whole measurement: the twin of ``rueda measure``.

Phases: one worker **alone** on its machine (step time and memory against the batch), its **noise** scale in a short
training, then **several** workers (all-reduce, what they cost each other, overlap). Under a launcher rank 0 is the one
alone, the others wait; otherwise several are started.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from rueda.errors import ProfileError, RecipeError, explain
from rueda.measure.communication import QUICK_SIZES, SIZES
from rueda.measure.noise import measure_noise
from rueda.measure.own_loop import describe
from rueda.measure.steps import Stepper, default_batches, measure_steps
from rueda.measure.workers import Answer, Request, measure_here, measure_started
from rueda.records import Recipe
from rueda.records.profile import Profile, StepTime
from rueda.tasks import Task
from rueda.tasks.loading import load_task_and_data
from rueda.terminal.phases import PhasesProgress
from rueda.world import World, open_world
from rueda.world.cores import usable_cores
from rueda.world.device import choose_threads
from rueda.world.identity import Identity


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Seconds for each phase, so that a slow or busy machine measures less, not longer."""

    steps: float
    communication: float
    together: float
    """for each number of workers"""
    noise: float
    """0: it is not measured"""
    longest_step: float
    """a batch whose step takes longer is the last"""
    sizes: tuple[int, ...]
    """bytes of the all-reduces"""


QUICK = Budget(steps=4.0, communication=1.5, together=4.0, noise=3.0, longest_step=0.5, sizes=QUICK_SIZES)
FULL = Budget(steps=24.0, communication=6.0, together=30.0, noise=20.0, longest_step=3.0, sizes=SIZES)


def measure(
    task: Task | str,
    *,
    workers: Sequence[int] | None = None,
    batches: Sequence[int] | None = None,
    settings: Sequence[str] = (),
    quick: bool = False,
    budget: Budget | None = None,
    progress: bool = False,
) -> Profile:
    """Measure a task on this machine, or with the workers that a launcher has started; all of them get the profile.

    Args:
        task: what is trained, by name, file or itself. Only by name or file can workers be started for it.
        workers: how many to start, one number after the other; by default 2, or as many as there are GPUs; (1,) starts
            none. Under a launcher: those that run.
        batches: local batches; by default powers of two, until throughput saturates.
        settings: fields of the recipe, as ``name=value``.
        quick: fewer batches and repeats, about 20 s instead of 2 minutes.
        budget: seconds for each phase, if neither quick nor not quick will do.
        progress: show a bar or lines.
    """
    budget = budget or (QUICK if quick else FULL)
    world = open_world()
    found = load_task_and_data(task)
    recipe = found.recipe.with_settings(settings).change(workers=1)
    numbers = _numbers(workers, task, world)
    speak = progress and world.is_main
    with PhasesProgress(speak=speak, phases=2 + len(numbers)) as bar:
        profile = _alone(found, recipe, world, batches, budget, quick, bar)
        batches = _batches_together(profile.steps, recipe.batch, budget.together)
        answers = []
        for number in numbers:
            bar.phase(f"{number} workers: all-reduce, steps together")
            request = Request(
                recipe=profile.recipe, batches=tuple(batches), sizes=budget.sizes, step_seconds=budget.together,
                communication_seconds=budget.communication,
            )  # fmt: skip
            if world.size > 1:
                answers.append(measure_here(found, request, world))
            else:
                assert isinstance(task, str)
                answers.append(measure_started(task, request, number))
    return with_workers(profile, answers)


def with_workers(profile: Profile, answers: Sequence[Answer]) -> Profile:
    """Add what several workers found to the profile of one."""
    from dataclasses import replace

    if not answers:
        return profile
    first = answers[0].together
    return replace(
        profile,
        communication=tuple(answer.communication for answer in answers),
        together=tuple(answer.together for answer in answers),
        overlap=first.overlap,
        contention=first.contention(profile.steps),
    )


def _alone(
    task: Task, recipe: Recipe, world: World, batches: Sequence[int] | None, budget: Budget, quick: bool,
    bar: PhasesProgress,
) -> Profile:  # fmt: skip
    """Measure one worker while the others wait; an error there is raised on all."""

    def work() -> Profile:
        with _all_cores(world):
            bar.phase("step time and memory of one worker")
            stepper = Stepper(task, recipe, World(device=world.device))
            chosen = batches or default_batches(stepper.num_examples, recipe.batch, quick=quick)
            steps, largest = measure_steps(
                stepper, chosen, seconds=budget.steps, longest=budget.longest_step, all_of_them=batches is not None,
                tell=bar.tell,
            )  # fmt: skip
            model, examples = stepper.training.model, stepper.num_examples
            bar.phase("gradient noise scale, in a short training")
            noise = measure_noise(task, recipe, World(device=world.device), seconds=budget.noise)
            return describe(
                model, world.device, task=task.name, examples=examples, steps=steps, recipe=recipe, largest=largest,
                noise=noise,
            )  # fmt: skip

    return world.on_main(work)


@contextmanager
def _all_cores(world: World) -> Iterator[None]:
    """Give a worker that is alone on its machine the threads that it would have without a launcher."""
    before = torch.get_num_threads()
    if world.local_size > 1:
        torch.set_num_threads(choose_threads(Identity()))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _numbers(workers: Sequence[int] | None, task: Task | str, world: World) -> list[int]:
    if world.size > 1:
        if workers is not None and list(workers) != [world.size]:
            raise RecipeError(f"{world.size} workers run; leave --workers out, or start `rueda measure` by itself")
        return [world.size]
    if workers is None:
        if not isinstance(task, str):
            return []
        gpus = torch.cuda.device_count() if world.device.type == "cuda" else 0
        several = gpus if world.device.type == "cuda" else min(2, usable_cores())
        return [several] if several > 1 else []
    for number in workers:
        if number < 1:
            raise RecipeError(explain("workers", expected="1 or more", got=number, do="correct it"))
    wanted = sorted({number for number in workers if number > 1})
    if wanted and not isinstance(task, str):
        raise ProfileError(f"workers can be started for a task by name or file only, got {type(task).__name__}")
    return wanted


def _batches_together(steps: Sequence[StepTime], own: int, seconds: float) -> list[int]:
    """Choose the batches that several workers can measure in the time, the smallest first; the recipe's in any case."""
    steps_each, slower = 14, 2.5  # two kinds, three rounds, warm-up; fewer threads and an exchange
    chosen, left = [], 2 * seconds
    for step in sorted(steps, key=lambda step: (step.batch != own, step.batch)):
        left -= steps_each * slower * step.seconds
        if left > 0 or step.batch == own:
            chosen.append(step.batch)
    return sorted(chosen)
