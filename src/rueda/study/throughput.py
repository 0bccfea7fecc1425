"""Images per second against the local batch: a processor is idle below some batch, and saturated above it.

One worker makes real updates (loader, forward, backward, optimizer) at local batches 1, 2, 4 ... The batches take
turns, round after round, so that a busy machine disturbs all alike, and the best round counts. Throughput *saturates*
at the smallest batch that reaches 95 % of the best: a larger one only makes the global batch harder to train. Where
that is the largest of all, nothing shows that a still larger one would not be faster: it is not saturated.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from rueda.records.environment import environment
from rueda.records.throughput import Speed, Throughput
from rueda.study.inputs import check_batches
from rueda.study.progress import RoundsProgress
from rueda.tasks import Task
from rueda.tasks.loading import load_task_and_data
from rueda.train.regime import at_fixed_batch
from rueda.train.training import Training
from rueda.world import open_world

_RATE = 1e-6
"""learning rate of timed updates, at which nothing diverges"""


def study_throughput(
    task: Task | str,
    *,
    batches: Sequence[int] | None = None,
    settings: Sequence[str] = (),
    seconds: float = 0.5,
    rounds: int = 3,
    folder: Path | str | None = None,
    progress: bool = True,
) -> Throughput:
    """Measure images/s against the local batch; the twin of ``rueda throughput``.

    Args:
        task: what is trained, by name, file or itself.
        batches: local batches; by default 1, 2, 4 ... up to 1024 and an eighth of the training data.
        settings: fields of the recipe, as ``name=value``.
        seconds: time for each batch in each round.
        rounds: how often each batch has its turn.
        folder: where ``throughput.json`` is written; None writes nothing.
        progress: show a bar, or a line a round.
    """
    loaded = load_task_and_data(task)
    recipe = loaded.recipe.with_settings(settings).change(workers=1, ghost_batch=None)
    num_examples = len(loaded.load("train")) // recipe.accumulate  # type: ignore[arg-type]
    if batches is None:
        largest = max(1, min(1024, num_examples // 8))
        batches = [2**power for power in range(largest.bit_length())]
    check_batches(batches, num_examples)
    world = open_world()
    trainings = {batch: Training(loaded, at_fixed_batch(recipe, batch), world) for batch in batches}
    for training in trainings.values():
        _updates(training, 0.0)
    speeds: dict[int, list[float]] = {batch: [] for batch in batches}
    with RoundsProgress(speak=progress, rounds=rounds, turns=len(trainings)) as show:
        for _ in range(rounds):
            for batch, training in trainings.items():
                speeds[batch].append(_updates(training, seconds))
                fastest = max(speeds, key=lambda one: max(speeds[one], default=0.0))
                show.turn(f"the fastest is batch {fastest:,} with {max(speeds[fastest]):,.0f} images/s")
    points = tuple(
        Speed(
            batch=batch, images_per_second=max(found), spread=statistics.pstdev(found),
            milliseconds_per_update=1e3 * batch * recipe.accumulate / max(found),
        )
        for batch, found in sorted(speeds.items())
    )  # fmt: skip
    result = Throughput(task=loaded.name, points=points, environment=environment())
    if folder is not None:
        result.save(Path(folder) / Throughput.FILE)
    return result


def _updates(training: Training, seconds: float) -> float:
    """Make updates for a while, at least one, and give the images/s."""
    started, num_examples = time.perf_counter(), 0
    while True:
        num_examples += training.step(rate=_RATE).num_examples
        passed = time.perf_counter() - started
        if passed >= seconds:
            return num_examples / passed
