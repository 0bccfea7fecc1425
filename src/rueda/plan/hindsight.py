"""Hindsight: what was predicted for a run against what it did, from its rows.

Images a second, updates, time and accuracy. A rehearsed run has the accuracy of N workers but the speed of one process,
so its speed is compared with nothing.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass

from rueda.errors import ProfileError, RunError
from rueda.plan.cluster import Cluster
from rueda.plan.noise import noise_of, statistical_efficiency
from rueda.plan.planning import base_recipe
from rueda.plan.prediction import predict
from rueda.records.profile import Profile
from rueda.records.run import Run


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One figure, predicted and as it happened."""

    name: str
    unit: str
    predicted: float | None
    happened: float | None

    @property
    def ratio(self) -> float | None:
        """What happened over what was predicted."""
        return self.happened / self.predicted if self.predicted and self.happened is not None else None


@dataclass(frozen=True, kw_only=True)
class Hindsight:
    """A run compared with its prediction."""

    run: str
    task: str
    cluster: str
    workers: int
    local_batch: int
    global_batch: int
    rehearsed: bool
    epochs: int
    figures: tuple[Compared, ...]
    accuracy: tuple[float | None, ...]
    """test accuracy after each epoch"""
    notes: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Write JSON."""
        return json.dumps(asdict(self), indent=1)


def compare_run(run: Run, profile: Profile, cluster: Cluster) -> Hindsight:
    """Compare a run with what the profile would have predicted for it.

    Args:
        run: a finished or interrupted run.
        profile: of its task.
        cluster: where it ran.

    Raises:
        RunError: the run is empty, diverged, or of another task.
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
    notes = ["rehearsed: one process was all the workers, so its speed is not that of N"] if rehearsed else []
    # The first epoch warms caches up; with two or more it is left out.
    speeds = [row.images_per_second for row in (rows[1:] or rows) if row.images_per_second > 0]
    speed = statistics.median(speeds) if speeds and not rehearsed else None
    epochs = last.epoch
    figures = [
        Compared(name="images/s", unit="", predicted=one.images_per_second, happened=speed),
        Compared(
            name="step", unit="ms", predicted=1e3 * one.step_seconds,
            happened=None if speed is None else 1e3 * one.global_batch / speed,
        ),
        Compared(
            name="updates", unit="", predicted=float(epochs * (profile.examples // one.global_batch)),
            happened=float(last.step),
        ),
        Compared(
            name="training time", unit="s", predicted=last.examples / one.images_per_second,
            happened=None if rehearsed else last.seconds,
        ),
    ]  # fmt: skip
    noise, base = noise_of(profile), base_recipe(profile)
    if noise is not None and one.global_batch > base.global_batch:
        worth = statistical_efficiency(one.global_batch, base.global_batch, noise.value)
        notes.append(
            f"noise scale {noise.value:,.0f}: these {epochs} epochs count like {epochs * worth:.2g} of one worker's"
        )
    return Hindsight(
        run=str(run.folder), task=task, cluster=cluster.name, workers=recipe.workers, local_batch=recipe.batch,
        global_batch=one.global_batch, rehearsed=rehearsed, epochs=epochs, figures=tuple(figures),
        accuracy=tuple(row.test_accuracy for row in rows), notes=(*notes, *one.warnings),
    )  # fmt: skip
