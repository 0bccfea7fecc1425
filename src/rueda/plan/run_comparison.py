"""Compare a finished run with what its profile predicts: throughput, step time, updates, training time, accuracy.

A rehearsed run has the accuracy of N workers but the speed of one process, so its speed is not compared.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

from rueda.errors import ProfileError, RunError
from rueda.plan.cluster import Cluster
from rueda.plan.noise import noise_of, statistical_efficiency
from rueda.plan.planning import base_recipe
from rueda.plan.prediction import predict
from rueda.records.metric import ACCURACY, MetricInfo
from rueda.records.profile import Profile
from rueda.records.run import Row, Run


@dataclass(frozen=True, kw_only=True)
class ComparedFigure:
    """A figure of a run: its predicted value, and the value that was measured."""

    name: str
    unit: str
    predicted: float | None
    measured: float | None

    @property
    def ratio(self) -> float | None:
        """The measured value divided by the predicted one."""
        return self.measured / self.predicted if self.predicted and self.measured is not None else None


@dataclass(frozen=True, kw_only=True)
class RunComparison:
    """A run and its prediction."""

    run: str
    task: str
    cluster: str
    workers: int
    local_batch: int
    global_batch: int
    rehearsed: bool
    epochs: int
    figures: tuple[ComparedFigure, ...]
    accuracy: tuple[float | None, ...]
    """test accuracy after each epoch, or the run's primary metric, where that is another one"""
    metric: MetricInfo = ACCURACY
    """what ``accuracy`` holds"""
    notes: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Return the comparison as JSON."""
        return json.dumps(asdict(self), indent=1)


def compare_run(run: Run, profile: Profile, cluster: Cluster) -> RunComparison:
    """Compare a run with the prediction that the profile gives for it.

    Args:
        run: a finished or interrupted run.
        profile: a profile of its task.
        cluster: where the run was trained.

    Raises:
        RunError: the run has no finished epoch, or diverged.
        ProfileError: the profile is of another task.
    """
    about, recipe, rows = run.environment(), run.recipe(), run.rows("epoch")
    if not rows:
        raise RunError(f"{run.folder}: expected at least one finished epoch, got none; train it first")
    last = rows[-1]
    if any(row.diverged for row in rows):
        raise RunError(
            f"{run.folder}: the run diverged in the epoch that ended at update {last.step}, so there is nothing "
            "to compare; lower the rate or warm up longer"
        )
    task = str(about.get("task"))
    if task != profile.task:
        raise ProfileError(f"{run.folder}: expected a run of {profile.task}, got one of {task}; measure that task")
    one = predict(profile, cluster, workers=recipe.workers, local_batch=recipe.batch, accumulate=recipe.accumulate)
    rehearsed = bool(about.get("rehearsed"))
    notes = (
        ["rehearsed: one process computed for all workers, so its speed is not that of N workers"] if rehearsed else []
    )
    # The first epoch includes start-up costs; it is left out if there are others.
    speeds = [speed for speed in _speeds(rows) if speed > 0]
    speed = statistics.median(speeds) if speeds and not rehearsed else None
    epochs = last.epoch
    step = None if speed is None else 1e3 * one.global_batch / speed
    updates = float(epochs * (profile.examples // one.global_batch))
    figures = (
        (f"{profile.unit}/s", "", one.images_per_second, speed),
        ("step", "ms", 1e3 * one.step_seconds, step),
        ("updates", "", updates, float(last.step)),
        ("training time", "s", last.examples / one.images_per_second, None if rehearsed else last.seconds),
    )
    base = base_recipe(profile)
    noise = noise_of(profile, base.global_batch)
    if noise is not None and one.global_batch > base.global_batch:
        worth = statistical_efficiency(one.global_batch, base.global_batch, noise.value)
        notes.append(
            f"noise scale {noise.value:,.0f}: these {epochs} epochs make the progress of {epochs * worth:.2g} epochs "
            "of one worker"
        )
    return RunComparison(
        run=str(run.folder), task=task, cluster=cluster.name, workers=recipe.workers, local_batch=recipe.batch,
        global_batch=one.global_batch, rehearsed=rehearsed, epochs=epochs,
        figures=tuple(ComparedFigure(name=a, unit=b, predicted=c, measured=d) for a, b, c, d in figures),
        accuracy=tuple(row.value() for row in rows), metric=last.metric, notes=(*notes, *one.warnings),
    )  # fmt: skip


def _speeds(rows: Sequence[Row]) -> list[float]:
    """Return the examples per second of each epoch but the first, if there are others.

    A profile counts batches of examples, also where the run counts tokens.
    """
    if rows[-1].unit != "tokens":
        return [row.images_per_second for row in (rows[1:] or rows)]
    if len(rows) == 1:
        return [rows[0].examples / max(rows[0].seconds, 1e-9)]
    return [
        (row.examples - before.examples) / max(row.seconds - before.seconds, 1e-9) for before, row in pairwise(rows)
    ]
