"""The parts of a measurement that run in worker processes: one worker alone, then several together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from rueda.errors import RecipeError
from rueda.measure.communication import measure_communication
from rueda.measure.layers import layers_of_training
from rueda.measure.noise import measure_noise
from rueda.measure.request import AloneAnswer, MeasureRequest, TogetherAnswer, TogetherRequest
from rueda.measure.step_meter import describe
from rueda.measure.steps import Stepper, Steps, default_batches, measure_steps
from rueda.measure.together import measure_together as measure_steps_together
from rueda.measure.work import work_of
from rueda.records import Recipe
from rueda.records.profile import Profile, StepTime
from rueda.records.recipe.values import refuse_settings
from rueda.records.throughput import counted_unit
from rueda.tasks import Task
from rueda.tasks.keras_task import KerasTask
from rueda.tasks.loading import load_measurable, load_task_and_data
from rueda.terminal.phases import PhasesProgress
from rueda.world import World, open_world
from rueda.world.cores import usable_cores
from rueda.world.device import choose_threads, is_gpu
from rueda.world.identity import Identity


def load_for_measurement(task: Task | KerasTask | str) -> Task | KerasTask:
    """Load a task with its data; a Keras model and its data are loaded together."""
    found = load_measurable(task) if isinstance(task, str) else task
    return found if isinstance(found, KerasTask) else load_task_and_data(found)


def measure_alone(request: MeasureRequest) -> AloneAnswer:
    """Load the task and measure one worker; return its profile and how many workers to measure together."""
    return measure_alone_here(load_for_measurement(request.task), request)


def measure_alone_here(task: Task | KerasTask, request: MeasureRequest) -> AloneAnswer:
    """Measure one worker of a loaded task; under a launcher rank 0 measures and the other ranks wait."""
    world = open_world(device=request.device)
    numbers = _numbers(request, world)
    refuse_settings(request.settings, {"workers": "give the numbers of workers by --workers"})
    budget = request.budget

    def recipe_of(base: Recipe) -> Recipe:
        recipe = base.with_settings(request.settings).change(workers=1)
        if recipe.rate_note:
            bar.say(recipe.rate_note)
        return recipe

    def steps_of(stepper: Steps, recipe: Recipe, num_examples: int) -> tuple[list[StepTime], int | None]:
        chosen = request.batches or default_batches(num_examples, recipe.batch, quick=request.quick)
        return measure_steps(
            stepper, chosen, seconds=budget.steps, longest=budget.longest_step,
            all_of_them=request.batches is not None, tell=bar.tell,
        )  # fmt: skip

    def work() -> Profile:
        with _all_cores(world):
            bar.phase("step time and memory of one worker")
            return work_on_keras(task) if isinstance(task, KerasTask) else work_on_task(task)

    def work_on_task(task: Task) -> Profile:
        recipe = recipe_of(task.recipe)
        stepper = Stepper(task, recipe, World(device=world.device))
        steps, largest = steps_of(stepper, recipe, stepper.num_examples)
        model, examples = stepper.training.model, stepper.num_examples
        of_work = min(recipe.batch, max(step.batch for step in steps))
        work, layers = work_of(stepper.training, of_work), layers_of_training(stepper.training, of_work)
        bar.phase("gradient noise scale, in a short training")
        noise = measure_noise(task, recipe, World(device=world.device), seconds=budget.noise)
        return describe(
            model, world.device, task=task.name, examples=examples, steps=steps, recipe=recipe, largest=largest,
            noise=noise, work=work, layers=layers, task_file=task.file, tolerance=task.tolerance,
            unit=counted_unit(task.unit),
        )  # fmt: skip

    def work_on_keras(task: KerasTask) -> Profile:
        from rueda.measure.keras_model import KerasStepper

        stepper = KerasStepper(task, world.device)
        recipe = recipe_of(stepper.recipe(task.batch))
        steps, largest = steps_of(stepper, recipe, stepper.num_examples)
        stepper.restore()
        bar.phase("gradient noise scale, in a short training")
        noise = stepper.measure_noise(recipe.batch, seconds=budget.noise)
        stepper.restore()
        return describe(  # without the file: `rueda train` cannot train it
            stepper.outline(), world.device, task=task.name, examples=stepper.num_examples, steps=steps, recipe=recipe,
            largest=largest, noise=noise, layers_known=False,
        )  # fmt: skip

    with PhasesProgress(speak=request.progress and world.is_main, phases=2 + len(numbers)) as bar:
        return AloneAnswer(profile=world.on_main(work), workers=numbers)


def measure_together(request: TogetherRequest) -> TogetherAnswer:
    """Load the task and measure all workers; every one of them must call this."""
    return measure_together_here(load_for_measurement(request.task), request)


def measure_together_here(task: Task | KerasTask, request: TogetherRequest) -> TogetherAnswer:
    """Measure all workers on a loaded task; every one of them must call this."""
    world, budget = open_world(device=request.device), request.budget
    link = measure_communication(world, sizes=budget.sizes, seconds=budget.communication)
    if isinstance(task, KerasTask):
        return TogetherAnswer(communication=link, together=None)
    together = measure_steps_together(task, request.recipe, world, request.batches, link, seconds=budget.together)
    return TogetherAnswer(communication=link, together=together)


@contextmanager
def _all_cores(world: World) -> Iterator[None]:
    """Use as many threads in this block as a single worker without a launcher would have."""
    before = torch.get_num_threads()
    if world.local_size > 1:
        torch.set_num_threads(choose_threads(Identity()))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _numbers(request: MeasureRequest, world: World) -> tuple[int, ...]:
    """Return the numbers of workers to measure together; under a launcher only the running workers."""
    if world.size > 1:
        if request.workers is not None and request.workers != (world.size,):
            raise RecipeError(
                f"a launcher started {world.size} workers already; leave --workers out, or do not use a launcher"
            )
        return (world.size,)
    if request.workers is None:
        module = torch.get_device_module(world.device) if is_gpu(world.device) else None
        several = min(2, usable_cores()) if module is None else module.device_count()
        return (several,) if several > 1 else ()
    return tuple(sorted({number for number in request.workers if number > 1}))
