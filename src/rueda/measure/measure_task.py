"""Measure a task as a whole: the function behind ``rueda measure``.

Phases: one worker **alone** on its machine (step time and memory at each batch), its **noise** scale in a short
training, then **several** workers (all-reduce, contention, overlap). Under a launcher rank 0 is the worker that is
measured alone, while the other ranks wait. A single worker (``workers=(1,)``), or a task that is given as an object, is
measured in this process. Otherwise each part runs in its own processes (:mod:`rueda.measure.worker_jobs`), and this
process, which waits for them, does not import torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rueda import jobs
from rueda.errors import ProfileError
from rueda.jobs import Job
from rueda.measure import request as requests
from rueda.measure.request import AloneAnswer, Budget, MeasureRequest, TogetherAnswer, TogetherRequest
from rueda.records import Recipe
from rueda.records.profile import Profile, StepTime
from rueda.records.recipe.batches import check_counts
from rueda.tasks.half_precision import protect_before_loading
from rueda.terminal.phases import PhasesProgress
from rueda.world.running import running_device, running_identity

if TYPE_CHECKING:
    from rueda.tasks import KerasTask, Task


def measure(
    task: Task | KerasTask | str,
    *,
    workers: Sequence[int] | None = None,
    batches: Sequence[int] | None = None,
    settings: Sequence[str] = (),
    quick: bool = False,
    budget: Budget | None = None,
    progress: bool = False,
) -> Profile:
    """Measure a task on this machine, or with the workers of a launcher; every worker gets the profile.

    Args:
        task: the name of a built-in task, the path of a task file, or a task, which may be that of a Keras model.
            Workers can be started only for the first two.
        workers: the numbers of workers to start, one after the other; by default 2, or the number of GPUs; (1,) starts
            none. Under a launcher: the running workers.
        batches: the local batches; by default powers of two until throughput saturates.
        settings: fields of the recipe, as ``name=value``.
        quick: use fewer batches and repeats, some 25 s instead of 2 minutes.
        budget: seconds for each phase, instead of those of ``quick``.
        progress: show a progress bar, or lines if the output is not a terminal.
    """
    for number in workers or ():
        check_counts(workers=number)
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
    if launched or set(workers or ()) == {1}:  # this process is itself a worker
        from rueda.measure.worker_jobs import load_for_measurement, measure_alone_here, measure_together_here

        loaded = load_for_measurement(task)
        alone = measure_alone_here(loaded, request)

        def together(asked: TogetherRequest, number: int) -> TogetherAnswer:
            return measure_together_here(loaded, asked)

    else:
        assert isinstance(task, str)
        protect_before_loading(task)
        job = Job(function="rueda.measure.worker_jobs:measure_alone", request=request, answer=AloneAnswer)
        alone = jobs.run(job, show=True)

        def together(asked: TogetherRequest, number: int) -> TogetherAnswer:
            where = "rueda.measure.worker_jobs:measure_together"
            return jobs.run(Job(function=where, request=asked, answer=TogetherAnswer), workers=number)

    profile, recipe = alone.profile, Recipe.from_toml(alone.profile.recipe)
    asked = TogetherRequest(
        task=request.task, recipe=recipe, budget=request.budget, device=request.device,
        batches=tuple(_batches_together(profile.steps, recipe.batch, request.budget.together)),
    )  # fmt: skip
    answers = []
    speak = progress and running_identity().rank == 0
    with PhasesProgress(speak=speak, phases=2 + len(alone.workers), done=2) as bar:
        for number in alone.workers:
            bar.phase(f"{number} workers: all-reduce, steps together")
            answers.append(together(asked, number))
    if not answers:
        return profile
    profile = replace(profile, communication=tuple(answer.communication for answer in answers))
    found = tuple(answer.together for answer in answers if answer.together is not None)
    if not found:
        return profile
    return replace(profile, together=found, overlap=found[0].overlap, contention=found[0].contention(profile.steps))


def _batches_together(steps: Sequence[StepTime], own: int, seconds: float) -> list[int]:
    """Choose the batches that several workers can measure in time, at least one: the recipe's, then the smallest."""
    steps_each, slower = 14, 2.5  # 14: two kinds, three rounds, warm-up; slower: fewer threads and communication
    chosen: list[int] = []
    left = 2 * seconds
    for step in sorted(steps, key=lambda step: (step.batch != own, step.batch)):
        left -= steps_each * slower * step.seconds
        if left > 0 or not chosen:
            chosen.append(step.batch)
    return sorted(chosen)
