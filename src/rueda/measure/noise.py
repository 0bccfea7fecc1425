"""Measure the gradient noise scale of a task in a short training, by the method of :mod:`rueda.optim.noise_scale`.

The task is really trained, at the recipe's learning rate. The noise scale grows during training, so it is averaged over
two intervals: the first steps, and those that the time allows after them. An early value is a lower bound for most of
the training; a recipe with ``noise_scale_every`` measures it throughout.
"""

from __future__ import annotations

import time

from rueda.errors import NonFiniteError
from rueda.optim.noise_scale import Estimator
from rueda.records import Recipe
from rueda.records.profile import NoiseScale
from rueda.tasks import Task
from rueda.train.regime import at_fixed_batch
from rueda.train.training import Training
from rueda.world import World

INTERVALS = 2
FEWEST_STEPS = 8
"""fewest steps that an interval is averaged over"""
MOST_EPOCHS = 2.0
MOST_LOST = 10
"""largest number of consecutive updates without finite gradients: mixed precision starts with a few"""


def measure_noise(
    task: Task, recipe: Recipe, world: World, *, seconds: float, intervals: int = INTERVALS
) -> tuple[NoiseScale, ...]:
    """Train for a short time; return the noise scale of each interval, or nothing if it cannot be measured.

    Args:
        task: the task, with its data in memory.
        recipe: the recipe to train with.
        world: one worker, whose batch is split into halves.
        seconds: approximate duration of all intervals, at most two epochs; 0 measures nothing.
        intervals: the number of values to measure.
    """
    recipe = at_fixed_batch(recipe, recipe.batch).change(workers=world.size, sync_batch_norm=False)
    if seconds <= 0 or recipe.local_batch < 4:  # batch norm needs two examples in each half
        return ()
    if task.step is not None:  # its batches need not be divisible: let the halves be collated by themselves
        recipe = recipe.change(batch=recipe.batch // 2, accumulate=2 * recipe.accumulate)
    training = Training(task, recipe, world)
    most_steps = max(intervals * FEWEST_STEPS, int(MOST_EPOCHS * len(training.loader)))
    found: list[NoiseScale] = []
    lost = 0
    for number in range(intervals):
        estimator, started, begun = Estimator(), time.perf_counter(), training.state.step
        steps_left = (most_steps - begun) // (intervals - number)
        while training.state.step - begun < steps_left:
            lost = 0 if _step(training, estimator) else lost + 1
            if lost > MOST_LOST:  # diverged
                return tuple(found)
            passed = time.perf_counter() - started
            if estimator.num_steps >= FEWEST_STEPS and passed > seconds / intervals:
                break
        state = training.state
        if estimator.num_steps >= FEWEST_STEPS:
            epochs = state.examples / training.loader.num_examples
            found.append(estimator.estimate(step=state.step, epochs=epochs, source=training.updater.source))
    return tuple(found)


def _step(training: Training, estimator: Estimator) -> bool:
    """Make one update and add its gradient norms to the estimator; return False if they were not finite."""
    try:
        reading = training.step(measure_noise=True).reading
    except NonFiniteError:
        return False
    return reading is None or estimator.observe(*reading.sums(), reading.num_parts, reading.examples_per_part)
