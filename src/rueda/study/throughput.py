"""Images per second against the local batch: a processor is idle below some batch, and saturated above it.

One worker makes the timed steps of ``rueda measure`` (:mod:`rueda.measure.steps`) at local batches 1, 2, 4 ...: the
batches take turns, so that a busy machine disturbs all alike, and the medians count. Throughput *saturates* at the
smallest batch that reaches 95 % of the best: a larger one only makes the global batch harder to train. Where that is
the largest of all, nothing shows that a still larger one would not be faster: it is not saturated.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rueda.measure.steps import Stepper, measure_steps
from rueda.records.environment import environment
from rueda.records.profile import StepTime, update_seconds
from rueda.records.recipe.batches import check_batches
from rueda.records.throughput import Speed, Throughput
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
    """Measure images/s against the local batch; the twin of ``rueda throughput``.

    Args:
        task: what is trained, by name, file or itself.
        batches: local batches; by default 1, 2, 4 ... up to 1024 and an eighth of the training data.
        settings: fields of the recipe, as ``name=value``.
        seconds: time for each batch, in all rounds together.
        folder: where ``throughput.json`` is written; None writes nothing.
        progress: show a bar, or a line.
    """
    loaded = load_task_and_data(task)
    recipe = loaded.recipe.with_settings(settings).change(workers=1, ghost_batch=None)
    num_examples = len(loaded.load("train")) // recipe.accumulate  # type: ignore[arg-type]
    if batches is None:
        largest = max(1, min(1024, num_examples // 8))
        batches = [2**power for power in range(largest.bit_length())]
    check_batches(batches, num_examples)
    single = recipe.change(batch=min(batches), accumulate=1)  # the recipe's own batch need not fit the data
    with PhasesProgress(speak=progress, phases=1) as show:
        show.phase(f"images/s at local batch {', '.join(f'{batch:,}' for batch in sorted(batches))}")
        steps, _ = measure_steps(
            Stepper(loaded, single, open_world()), batches, seconds=seconds * len(batches), all_of_them=True,
            tell=show.tell,
        )  # fmt: skip
    points = tuple(_speed(step, recipe.accumulate) for step in steps)
    result = Throughput(task=loaded.name, points=points, statistic="median", environment=environment())
    if folder is not None:
        result.save(Path(folder) / Throughput.FILE)
    return result


def _speed(step: StepTime, accumulate: int) -> Speed:
    """Give the speed of updates of several such steps; it is computed from the single step, not timed."""
    update = update_seconds(step.seconds, min(step.optimizer, step.seconds), accumulate)
    speed = step.batch * accumulate / update
    return Speed(
        batch=step.batch, images_per_second=speed, spread=speed * step.relative_spread,
        milliseconds_per_update=1e3 * update,
    )  # fmt: skip
