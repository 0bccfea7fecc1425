"""The gradient noise scale of a task, from a short training; the method is :mod:`rueda.optim.noise_scale`'s.

The task is really trained, at the recipe's rate. The noise scale grows while a model learns, so it is averaged over
stretches of the training: the first steps, and what the time allows after them. An early value is a lower bound of
what most of a training meets; ``noise_scale_every`` in a recipe follows it all the way.
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

STRETCHES = 2
FEWEST_STEPS = 8
"""of a stretch: fewer say nothing"""
MOST_EPOCHS = 2.0
MOST_LOST = 10
"""updates in a row whose gradients are not finite: mixed precision begins with some"""


def measure_noise(
    task: Task, recipe: Recipe, world: World, *, seconds: float, stretches: int = STRETCHES
) -> tuple[NoiseScale, ...]:
    """Train for some seconds and give the noise scale of each stretch; nothing if the task cannot tell it.

    Args:
        task: with its data in memory.
        recipe: as it is to be trained.
        world: one worker, whose batch is taken in halves.
        seconds: for all stretches, about; at most two epochs; 0 measures nothing.
        stretches: how many values to give.
    """
    recipe = at_fixed_batch(recipe, recipe.batch).change(workers=world.size, sync_batch_norm=False)
    if seconds <= 0 or recipe.local_batch < 4:  # no two halves with anything to normalise
        return ()
    training = Training(task, recipe, world)
    most_steps = max(stretches * FEWEST_STEPS, int(MOST_EPOCHS * len(training.loader)))
    found: list[NoiseScale] = []
    lost = 0
    for number in range(stretches):
        estimator, started, begun = Estimator(), time.perf_counter(), training.state.step
        steps_left = (most_steps - begun) // (stretches - number)
        while training.state.step - begun < steps_left:
            lost = 0 if _step(training, estimator) else lost + 1
            if lost > MOST_LOST:  # diverged
                return tuple(found)
            passed = time.perf_counter() - started
            if estimator.num_steps >= FEWEST_STEPS and passed > seconds / stretches:
                break
        state = training.state
        if estimator.num_steps >= FEWEST_STEPS:
            epochs = state.examples / training.loader.num_examples
            found.append(estimator.estimate(step=state.step, epochs=epochs, source=training.updater.source))
    return tuple(found)


def _step(training: Training, estimator: Estimator) -> bool:
    """Make one update and observe it; False if its gradients were not finite."""
    try:
        reading = training.step(measure_noise=True).reading
    except NonFiniteError:
        return False
    return reading is None or estimator.observe(*reading.sums(), reading.num_parts, reading.examples_per_part)
