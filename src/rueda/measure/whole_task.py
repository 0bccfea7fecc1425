"""The whole measurement of a task: the twin of ``rueda measure``.

Phases: one worker **alone** on its machine (step time and memory against the batch), its **noise** scale in a short
training, then **several** workers (all-reduce, what they cost each other, overlap). Under a launcher rank 0 is the one
alone, and the others wait. One worker alone (``workers=(1,)``), or a task that was given as an object, is measured in
this process. Otherwise each part runs in processes of its own (:mod:`rueda.measure.parts`), and this one, which waits
for them, loads no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rueda import jobs
from rueda.errors import ProfileError, RecipeError
from rueda.jobs import Job
from rueda.measure import request as requests
from rueda.measure.request import AloneAnswer, Budget, MeasureRequest, TogetherAnswer, TogetherRequest
from rueda.records import Recipe
from rueda.records.profile import Profile, StepTime
from rueda.terminal.phases import PhasesProgress
from rueda.world.running import running_device, running_identity

if TYPE_CHECKING:
    from rueda.tasks import Task


def measure_task(
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
    for number in workers or ():
        if number < 1:
            raise RecipeError("workers", expected="1 or more", got=number, do="correct it")
    launched = running_identity().size > 1
    if not isinstance(task, str) and not launched:
        if any(number > 1 for number in workers or ()):
            raise ProfileError(f"workers can be started for a task by name or file only, got {type(task).__name__}")
        workers = (1,)
    request = MeasureRequest(
        task=task if isinstance(task, str) else task.name, workers=None if workers is None else tuple(workers),
        batches=None if batches is None else tuple(batches), settings=tuple(settings), quick=quick,
        budget=budget or (requests.QUICK if quick else requests.FULL), progress=progress, device=running_device(),
    )  # fmt: skip
    if launched or set(workers or ()) == {1}:  # this process is a worker itself
        from rueda.measure.parts import measure_alone_here, measure_together_here
        from rueda.tasks.loading import load_task_and_data

        loaded = load_task_and_data(task)
        return _measure(
            request,
            measure_alone_here(loaded, request),
            lambda asked, number: measure_together_here(loaded, asked),
            speak=progress and running_identity().rank == 0,
        )
    return _measure(
        request,
        jobs.run(Job(function="rueda.measure.parts:measure_alone", request=request, answer=AloneAnswer), show=True),
        lambda asked, number: jobs.run(
            Job(function="rueda.measure.parts:measure_together", request=asked, answer=TogetherAnswer), workers=number
        ),
        speak=progress,
    )


def _measure(
    request: MeasureRequest, alone: AloneAnswer, together: Callable[[TogetherRequest, int], TogetherAnswer], speak: bool
) -> Profile:
    """Measure several workers after one, and put both into the profile."""
    profile, recipe = alone.profile, Recipe.from_toml(alone.profile.recipe)
    asked = TogetherRequest(
        task=request.task, recipe=recipe, budget=request.budget, device=request.device,
        batches=tuple(_batches_together(profile.steps, recipe.batch, request.budget.together)),
    )  # fmt: skip
    answers = []
    with PhasesProgress(speak=speak, phases=2 + len(alone.workers), done=2) as bar:
        for number in alone.workers:
            bar.phase(f"{number} workers: all-reduce, steps together")
            answers.append(together(asked, number))
    return with_workers(profile, answers)


def with_workers(profile: Profile, answers: Sequence[TogetherAnswer]) -> Profile:
    """Add what several workers found to the profile of one."""
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


def _batches_together(steps: Sequence[StepTime], own: int, seconds: float) -> list[int]:
    """Choose the batches that several workers can measure in the time, the smallest first; the recipe's in any case."""
    steps_each, slower = 14, 2.5  # two kinds, three rounds, warm-up; fewer threads and an exchange
    chosen, left = [], 2 * seconds
    for step in sorted(steps, key=lambda step: (step.batch != own, step.batch)):
        left -= steps_each * slower * step.seconds
        if left > 0 or step.batch == own:
            chosen.append(step.batch)
    return sorted(chosen)
