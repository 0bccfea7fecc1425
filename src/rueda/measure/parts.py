"""The parts of a measurement, each a job: one worker alone, then several together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from rueda.errors import RecipeError
from rueda.measure.communication import measure_communication
from rueda.measure.noise import measure_noise
from rueda.measure.own_loop import describe
from rueda.measure.request import AloneAnswer, MeasureRequest, TogetherAnswer, TogetherRequest
from rueda.measure.steps import Stepper, default_batches, measure_steps
from rueda.measure.together import measure_together as measure_steps_together
from rueda.records.profile import Profile
from rueda.tasks import Task
from rueda.tasks.loading import load_task_and_data
from rueda.terminal.phases import PhasesProgress
from rueda.world import World, open_world
from rueda.world.cores import usable_cores
from rueda.world.device import choose_threads
from rueda.world.identity import Identity


def measure_alone(request: MeasureRequest) -> AloneAnswer:
    """Measure one worker, and say how many are to be measured together."""
    return measure_alone_here(load_task_and_data(request.task), request)


def measure_alone_here(task: Task, request: MeasureRequest) -> AloneAnswer:
    """Measure one worker of a task that is loaded already; under a launcher it is rank 0, the others wait."""
    world = open_world(device=request.device)
    numbers = _numbers(request, world)
    recipe = task.recipe.with_settings(request.settings).change(workers=1)
    budget = request.budget

    def work() -> Profile:
        with _all_cores(world):
            bar.phase("step time and memory of one worker")
            stepper = Stepper(task, recipe, World(device=world.device))
            chosen = request.batches or default_batches(stepper.num_examples, recipe.batch, quick=request.quick)
            steps, largest = measure_steps(
                stepper, chosen, seconds=budget.steps, longest=budget.longest_step,
                all_of_them=request.batches is not None, tell=bar.tell,
            )  # fmt: skip
            model, examples = stepper.training.model, stepper.num_examples
            bar.phase("gradient noise scale, in a short training")
            noise = measure_noise(task, recipe, World(device=world.device), seconds=budget.noise)
            return describe(
                model, world.device, task=task.name, examples=examples, steps=steps, recipe=recipe, largest=largest,
                noise=noise,
            )  # fmt: skip

    with PhasesProgress(speak=request.progress and world.is_main, phases=2 + len(numbers)) as bar:
        return AloneAnswer(profile=world.on_main(work), workers=numbers)


def measure_together(request: TogetherRequest) -> TogetherAnswer:
    """Measure the workers that were started; all of them call it."""
    return measure_together_here(load_task_and_data(request.task), request)


def measure_together_here(task: Task, request: TogetherRequest) -> TogetherAnswer:
    """Measure the workers that were started on a task that is loaded already."""
    world, budget = open_world(device=request.device), request.budget
    link = measure_communication(world, sizes=budget.sizes, seconds=budget.communication)
    together = measure_steps_together(task, request.recipe, world, request.batches, link, seconds=budget.together)
    return TogetherAnswer(communication=link, together=together)


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


def _numbers(request: MeasureRequest, world: World) -> tuple[int, ...]:
    """Say how many workers are to be measured together: under a launcher those that run."""
    if world.size > 1:
        if request.workers is not None and request.workers != (world.size,):
            raise RecipeError(f"{world.size} workers run; leave --workers out, or start `rueda measure` by itself")
        return (world.size,)
    if request.workers is None:
        several = torch.cuda.device_count() if world.device.type == "cuda" else min(2, usable_cores())
        return (several,) if several > 1 else ()
    return tuple(sorted({number for number in request.workers if number > 1}))
