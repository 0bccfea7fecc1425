"""Choose the checkpoint interval and the spare nodes of a planned training, by formula and by simulation.

Phases: the **job**, with what is known of its failures and what is assumed; the interval by Daly's formula
(:mod:`rueda.plan.checkpoint_interval`), rounded to two digits; the number of **spares**, simulated with that interval;
the **intervals** around it, simulated with those spares (:mod:`rueda.plan.simulation`); the **choice**.

The formula's interval is chosen unless the simulation finds one that is better by more than half a point and by more
than two standard errors of the difference: then that one. The formula does not know how long the training is, that a
checkpoint is written asynchronously, and that nodes may be missing.

The number of spares is the one with the most goodput for each node that is paid: goodput x nodes / (nodes + spares).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from rueda.plan.checkpoint_interval import daly_interval, young_interval
from rueda.plan.cluster import Cluster
from rueda.plan.failures import (
    DETECT_SECONDS,
    HARDWARE,
    RECOVER_SECONDS,
    REPAIR_HOURS,
    FailureModel,
    failure_model,
)
from rueda.records.failure_plan import FailurePlan, JobFailures, SimulatedGoodput
from rueda.records.plan import PlanRow
from rueda.records.profile import Profile
from rueda.terminal.numbers import predicted_time

NEGLIGIBLE = 0.05
"""expected failures during a training below which a plan says nothing about them"""
FLAT = 0.005
"""difference of goodput that is worth another interval"""
STATE_BYTES = 12
"""bytes of a checkpoint for each parameter: the parameter and two moments of Adam in float32"""
WRITE_BANDWIDTH = 1e9
"""bytes per second at which a checkpoint is assumed to be written"""
LEAST_SECONDS = 1.0
"""shortest time that a checkpoint is assumed to take"""
ENOUGH_FAILURES = 200
"""expected failures after which a simulation ends: its goodput hardly depends on its length any more"""
REPETITIONS = 2000
_SPARES = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


def plan_failures(
    row: PlanRow, profile: Profile, cluster: Cluster, *, hours: float | None = None, always: bool = False, seed: int = 0
) -> FailurePlan | None:
    """Plan the checkpoints and spare nodes of a training; None if failures are negligible.

    Args:
        row: the recommended row of the plan.
        profile: the measured task, whose parameters say how large a checkpoint is.
        cluster: where the training will run.
        hours: how long the training takes; None: as predicted.
        always: also where failures are negligible.
        seed: of the simulation.
    """
    if cluster.is_profiled and cluster.failures is None and not always:
        return None  # published rates are those of clusters
    model = failure_model(cluster)
    job = job_of(model, row.nodes, profile)
    seconds = 3600 * (row.hours if hours is None else hours)
    expected = seconds / job.job_mtbf_seconds
    if expected < NEGLIGIBLE and not always:
        return None
    simulated = min(seconds, ENOUGH_FAILURES * job.job_mtbf_seconds)
    shortest = max(job.write_seconds - job.stall_seconds, row.step_seconds)
    found = _Simulations(job, simulated, shortest, model.elastic, _num_repetitions(expected), seed)
    start = found.rounded(daly_interval(job.stall_seconds, job.job_mtbf_seconds))
    most = math.inf if cluster.max_nodes is None else max(0, cluster.max_nodes - row.nodes)
    by_spares = found.by_spares(start, most if model.spares is None else max(most, model.spares), model.spares)
    spares = _best_spares(by_spares, job.nodes, model)
    choice = found.choose(start, spares)
    return FailurePlan(
        job=job, source=model.source, hours=seconds / 3600, expected=expected, simulated_hours=simulated / 3600,
        workers_per_node=-(-row.workers // row.nodes),
        young_seconds=young_interval(job.stall_seconds, job.job_mtbf_seconds),
        daly_seconds=daly_interval(job.stall_seconds, job.job_mtbf_seconds), interval_seconds=choice.interval,
        reason=choice.reason, flat=choice.flat, spares=spares, elastic=model.elastic, intervals=choice.rows,
        by_spares=by_spares, repetitions=found.repetitions, seed=seed,
    )  # fmt: skip


def job_of(model: FailureModel, nodes: int, profile: Profile) -> JobFailures:
    """Return the failures of a training on some nodes; what the model does not know is assumed."""
    assert model.mtbf_hours is not None, "failure_model() has filled it in"
    stall = model.checkpoint_seconds
    if stall is None:
        stall = max(LEAST_SECONDS, STATE_BYTES * profile.parameters / WRITE_BANDWIDTH)

    def known(value: float | None, otherwise: float) -> float:
        return otherwise if value is None else value

    return JobFailures(
        nodes=nodes, mtbf_seconds=3600 * model.mtbf_hours, hardware=known(model.hardware, HARDWARE),
        stall_seconds=stall, write_seconds=max(stall, known(model.write_seconds, stall)),
        detect_seconds=known(model.detect_seconds, DETECT_SECONDS),
        recover_seconds=known(model.recover_seconds, RECOVER_SECONDS),
        repair_seconds=3600 * known(model.repair_hours, REPAIR_HOURS),
    )  # fmt: skip


class _Choice(NamedTuple):
    interval: float
    reason: str
    flat: tuple[float, float]
    rows: tuple[SimulatedGoodput, ...]


class _Simulations(NamedTuple):
    """The simulations of a training that differ in interval and spares."""

    job: JobFailures
    seconds: float
    shortest: float
    elastic: bool
    repetitions: int
    seed: int

    def rounded(self, interval: float) -> float:
        """Round an interval to two digits of minutes, or of seconds where it is short; but not below the shortest."""
        size = 60.0 if interval >= 600 else 1.0
        return float(max(size * float(f"{interval / size:.2g}"), self.shortest))

    def by_spares(self, interval: float, most: float, asked: int | None) -> tuple[SimulatedGoodput, ...]:
        """Simulate numbers of spares, waiting and elastic, until more of them hardly help."""
        found: list[SimulatedGoodput] = []
        for number in sorted({*_SPARES, *([] if asked is None else [asked])}):
            if number > most:
                break
            pair = [self._rows([interval], number, elastic)[0] for elastic in (False, True)]
            enough = bool(found) and pair[0].goodput - found[-2].goodput < FLAT / 5 and number > (asked or 0)
            found += pair
            if enough:
                break
        return tuple(found)

    def choose(self, start: float, spares: int) -> _Choice:
        """Simulate the intervals around the formula's one, and choose."""
        import numpy as np

        from rueda.plan.simulation import simulate, standard_error

        intervals = sorted({start, *self._around(start)})
        done = simulate(
            self.job, intervals, seconds=self.seconds, spares=spares, elastic=self.elastic,
            repetitions=self.repetitions, seed=self.seed,
        )  # fmt: skip
        rows = done.rows()
        at, best = intervals.index(start), int(np.argmax([row.goodput for row in rows]))
        better = done.goodput[best] - done.goodput[at]
        is_better = better.mean() > max(FLAT, 2 * standard_error(better))
        chosen = best if is_better else at
        every = predicted_time(self.job.job_mtbf_seconds)
        reason = f"Daly 2006, for {predicted_time(self.job.stall_seconds)} a checkpoint and a failure every {every}"
        if start <= self.shortest:
            reason = "as often as a checkpoint can be written"
        if is_better:
            more = f"{100 * better.mean():.1f} points of goodput more"
            reason = f"simulated: {more} than at Daly's {predicted_time(intervals[at])}"
        flat = [row.interval_seconds for row in rows if row.goodput >= rows[best].goodput - FLAT]
        return _Choice(intervals[chosen], reason, (flat[0], flat[-1]), tuple(rows))

    def _around(self, start: float) -> Iterator[float]:
        """Yield intervals from an eighth to eight times the formula's, not beyond the training's own length."""
        for number in range(-12, 13):
            interval = self.rounded(start * 2 ** (number / 4))
            if interval <= max(self.seconds, start):
                yield interval

    def _rows(self, intervals: list[float], spares: int, elastic: bool) -> list[SimulatedGoodput]:
        from rueda.plan.simulation import simulate

        return simulate(
            self.job, intervals, seconds=self.seconds, spares=spares, elastic=elastic,
            repetitions=self.repetitions, seed=self.seed,
        ).rows()  # fmt: skip


def _num_repetitions(expected: float) -> int:
    """Return fewer repetitions where each has many failures, whose goodput then varies less.

    >>> _num_repetitions(0.8), _num_repetitions(100), _num_repetitions(1000)
    (2000, 1000, 500)
    """
    return min(REPETITIONS, round(100_000 / min(max(expected, 1), ENOUGH_FAILURES)))


def _best_spares(rows: tuple[SimulatedGoodput, ...], nodes: int, model: FailureModel) -> int:
    if model.spares is not None:
        return model.spares
    own = [row for row in rows if row.elastic == model.elastic]
    return max(own, key=lambda row: row.goodput * nodes / (nodes + row.spares)).spares
