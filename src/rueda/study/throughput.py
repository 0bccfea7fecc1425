"""Measures throughput against the local batch: a small batch leaves a processor idle, a large one saturates it.

One worker is timed as in ``rueda measure`` (:mod:`rueda.measure.steps`) at local batches 1, 2, 4 ... The batch sizes
take turns, so that other load on the machine affects all of them alike, and the median is used. Throughput *saturates*
at the smallest batch that reaches 95 % of the highest throughput; a larger batch only makes the global batch harder to
train. If only the largest batch measured reaches 95 %, a still larger one may be faster: throughput is not saturated.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rueda.data.length import count_examples
from rueda.files.start_directory import located
from rueda.measure.steps import Stepper, measure_steps
from rueda.records.environment import environment
from rueda.records.profile import StepTime, update_seconds
from rueda.records.recipe.batches import check_batches
from rueda.records.throughput import Throughput, ThroughputPoint, counted_unit
from rueda.tasks import Task
from rueda.tasks.loading import load_task_and_data
from rueda.terminal.phases import PhasesProgress
from rueda.world import open_world


def study_throughput(
    task: Task | str,
    *,
    batches: Sequence[int] | None = None,
    settings: Sequence[str] = (),
    seconds: float = 1.5,
    folder: Path | str | None = None,
    progress: bool = True,
) -> Throughput:
    """Measure images or examples per second against the local batch, as ``rueda throughput`` does.

    Args:
        task: a built-in name, a task file, or a :class:`Task`.
        batches: local batches; by default 1, 2, 4 ... up to 1024 or an eighth of the training set.
        settings: fields of the recipe, as ``name=value``.
        seconds: how long each batch size is timed, in all rounds together.
        folder: where ``throughput.json`` is written; None writes nothing.
        progress: show a bar, or a line.
    """
    start = Path.cwd()  # before the task file runs, which may call os.chdir
    loaded = load_task_and_data(task)
    recipe = loaded.recipe.with_settings(settings).change(workers=1, ghost_batch=None)
    num_examples = count_examples(loaded.for_recipe(recipe).load("train")) // recipe.accumulate
    if batches is None:
        largest = max(1, min(1024, num_examples // 8))
        batches = [2**power for power in range(largest.bit_length())]
    check_batches(batches, num_examples)
    single = recipe.change(batch=min(batches), accumulate=1)  # the recipe's own batch need not fit the data
    with PhasesProgress(speak=progress, phases=1) as show:
        show.phase(
            f"{counted_unit(loaded.unit)}/s at local batch {', '.join(f'{batch:,}' for batch in sorted(batches))}"
        )
        steps, _ = measure_steps(
            Stepper(loaded, single, open_world()), batches, seconds=seconds * len(batches), all_of_them=True,
            tell=show.tell,
        )  # fmt: skip
    points = tuple(_speed(step, recipe.accumulate) for step in steps)
    result = Throughput(
        task=loaded.name, points=points, statistic="median", environment=environment(),
        unit=counted_unit(loaded.unit),
    )  # fmt: skip
    if folder is not None:
        result.save(located(Path(folder), start) / Throughput.FILE)
    return result


def _speed(step: StepTime, accumulate: int) -> ThroughputPoint:
    """Compute the speed of updates that accumulate several such steps from the time of a single step."""
    update = update_seconds(step.seconds, min(step.optimizer, step.seconds), accumulate)
    speed = step.batch * accumulate / update
    return ThroughputPoint(
        batch=step.batch, images_per_second=speed, spread=speed * step.relative_spread,
        milliseconds_per_update=1e3 * update,
    )  # fmt: skip
