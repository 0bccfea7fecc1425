"""Simulate a training whose nodes fail: how much of the time is useful, for which checkpoint interval and which spares.

The training computes for an interval, saves, and so on, until a node fails, which is noticed after a while. Then

- it goes back to the last checkpoint whose writing was **complete**; what was computed since is lost;
- after a hardware failure a spare node takes the place of the failed one, which comes back as a spare when it is
  repaired. Where no spare is left, the training either waits for the first repair, or, if it is **elastic**, goes on
  with the remaining nodes, proportionally slower, and stops at the first checkpoint after a repair to take the node in;
- it recovers, during which nodes may fail as well, and computes again.

Nodes that compute fail after exponentially distributed times (:mod:`rueda.plan.failures`); spare nodes and waiting ones
do not fail. At the end of the simulated time the training is stopped in an orderly way, so what it has computed by then
is not lost. Between two events nothing is random, so a simulation has as many steps as failures, for all repetitions
and intervals at once: 24 hours of 128 nodes, 2,000 times for 25 intervals, take a fraction of a second. All intervals
meet the same random numbers, which makes their differences far more certain than each of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rueda.errors import ProfileError
from rueda.records.failure_plan import JobFailures, SimulatedGoodput

Array = NDArray[np.float64]

MOST_FAILURES = 5_000
"""the largest expected number of failures that is simulated"""


@dataclass(frozen=True)
class Simulated:
    """What became of the time: an array [intervals, repetitions] of seconds for each use of it."""

    intervals: tuple[float, ...]
    spares: int
    elastic: bool
    useful: Array
    stalled: Array
    lost: Array
    recovering: Array
    waiting: Array
    missing: Array
    failures: Array

    @property
    def seconds(self) -> Array:
        """The whole time."""
        parts = (self.useful, self.stalled, self.lost, self.recovering, self.waiting, self.missing)
        return np.asarray(sum(parts), dtype=np.float64)

    @property
    def goodput(self) -> Array:
        """The useful fraction of the time."""
        return self.useful / self.seconds

    def rows(self) -> list[SimulatedGoodput]:
        """Return the means over the repetitions, one for each interval."""
        found = []
        for number, interval in enumerate(self.intervals):
            goodput, seconds = self.goodput[number], self.seconds[number]
            parts: dict[str, Any] = {
                name: float((getattr(self, name)[number] / seconds).mean())
                for name in ("stalled", "lost", "recovering", "waiting", "missing")
            }
            found.append(
                SimulatedGoodput(
                    interval_seconds=interval, spares=self.spares, elastic=self.elastic, goodput=float(goodput.mean()),
                    standard_error=standard_error(goodput), failures=float(self.failures[number].mean()), **parts,
                )
            )  # fmt: skip
        return found


def standard_error(values: Array) -> float:
    """Return the standard error of a mean over repetitions."""
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0


def simulate(
    job: JobFailures,
    intervals: Sequence[float],
    *,
    seconds: float,
    is_work: bool = False,
    spares: int = 0,
    elastic: bool = False,
    repetitions: int = 2000,
    seed: int = 0,
) -> Simulated:
    """Simulate a training many times, with each of several checkpoint intervals.

    Args:
        job: the nodes, how often they fail, and how long everything takes.
        intervals: seconds of computation between two checkpoints. An interval that is shorter than the writing of a
            checkpoint allows is made longer: the next one begins when the last is complete.
        seconds: the simulated time.
        is_work: ``seconds`` is the computation to be done with all nodes, and the training ends, after a last
            checkpoint, when it is done; it should be a multiple of the intervals.
        spares: spare nodes.
        elastic: go on with fewer nodes where no spare one is left, instead of waiting for a repair.
        repetitions: how often.
        seed: of the random numbers.

    Raises:
        ProfileError: more failures are expected than can be simulated in a reasonable time.

    >>> job = JobFailures(nodes=128, mtbf_seconds=3692 * 3600, hardware=1.0, stall_seconds=60, write_seconds=60,
    ...                   detect_seconds=60, recover_seconds=300, repair_seconds=0)
    >>> found = simulate(job, [600, 3600, 6 * 3600], seconds=24 * 3600)
    >>> [f"{row.goodput:.1%} ± {row.standard_error:.1%}" for row in found.rows()]
    ['90.3% ± 0.0%', '96.4% ± 0.1%', '89.7% ± 0.3%']
    """
    expected = seconds / job.job_mtbf_seconds
    if expected > MOST_FAILURES:
        raise ProfileError(
            f"failures: expected at most {MOST_FAILURES:,} in the simulated time, got {expected:,.0f}, one every "
            f"{job.job_mtbf_seconds:.2g} s; use fewer nodes, fewer hours or a longer mean time between failures"
        )
    state = _State(job, intervals, seconds, is_work, spares, elastic, repetitions, np.random.default_rng(seed))
    while state.attempt():
        pass
    return Simulated(tuple(intervals), spares, elastic, *(state.spent[name] for name in _USES))


_USES = ("useful", "stalled", "lost", "recovering", "waiting", "missing", "failures")


class _State:
    """All repetitions of a simulated training, each with its own clock; arrays are [intervals, repetitions]."""

    def __init__(
        self, job: JobFailures, intervals: Sequence[float], seconds: float, is_work: bool, spares: int, elastic: bool,
        repetitions: int, random: np.random.Generator,
    ) -> None:  # fmt: skip
        self.job, self.seconds, self.is_work, self.random = job, seconds, is_work, random
        self.num_nodes, self.least = job.nodes + spares, 1 if elastic else job.nodes
        shape = (len(intervals), repetitions)
        shortest = job.write_seconds - job.stall_seconds
        self.interval = np.maximum(np.asarray(intervals, dtype=np.float64), shortest)[:, None]
        self.period = self.interval + job.stall_seconds
        self.clock, self.recovery = np.zeros(shape), np.zeros(shape)
        self.spent = {name: np.zeros(shape) for name in _USES}
        self.back = np.zeros((1, *shape))
        """[places, intervals, repetitions]: when the nodes that are away come back; times in the past: nobody"""

    def attempt(self) -> bool:
        """Advance from a start to the next failure, arrival of a node, or end; return False if all have ended."""
        job, spent = self.job, self.spent
        running = (spent["useful"] < self.seconds * (1 - 1e-12)) if self.is_work else self.clock < self.seconds
        if not running.any():
            return False
        # Phase 1: which comes first?
        num_active = np.clip(self.num_nodes - self._num_away(), 1, job.nodes)  # 0 only where the time is over
        speed = num_active / job.nodes
        lives = self.random.exponential(size=self.clock.shape[1]) * job.mtbf_seconds / num_active
        ends, joins = self._until_end(speed), self._until_join(num_active)
        length = np.minimum(np.minimum(lives, ends), joins)
        has_failed = running & (lives < ends) & (lives < joins)
        has_joined = running & (joins < ends) & ~has_failed
        # Phase 2: what was done until then.
        recovering = np.minimum(length, self.recovery)
        computing = length - recovering  # and saving
        rounds = np.floor(computing / self.period)
        done = rounds * self.interval + np.minimum(computing - rounds * self.period, self.interval)
        complete = np.floor((computing - job.write_seconds + job.stall_seconds) / self.period)
        kept = np.where(has_failed, np.minimum(done, np.maximum(complete, 0) * self.interval), done)
        self._spend(running, "useful", speed * kept)
        self._spend(running, "missing", (1 - speed) * kept)
        self._spend(running, "lost", done - kept)
        self._spend(running, "stalled", computing - done)
        self._spend(running, "recovering", recovering)
        spent["failures"] += has_failed
        self.clock += np.where(running, length, 0)
        # Phase 3: the failed node leaves, the failure is noticed, a node takes its place.
        is_away = has_failed & (self.random.random(self.clock.shape[1]) < job.hardware)
        self._send_away(is_away)
        self._pass_until(self.clock + job.detect_seconds, has_failed, "recovering")
        is_short = is_away & (self.num_nodes - self._num_away() < self.least)
        self._pass_until(self._first_back(), is_short, "waiting")
        self.recovery = np.where(has_failed | has_joined, job.recover_seconds, 0.0)
        return True

    def _num_away(self) -> NDArray[np.int64]:
        return np.asarray((self.back > self.clock).sum(axis=0))

    def _first_back(self) -> Array:
        """Return when the first node that is away comes back; infinity if none is away."""
        return np.asarray(np.where(self.back > self.clock, self.back, np.inf).min(axis=0))

    def _until_end(self, speed: Array) -> Array:
        """Return how long the training would go on without failures."""
        if not self.is_work:
            return self.seconds - self.clock
        left = (self.seconds - self.spent["useful"]) / speed
        return self.recovery + left + np.ceil(left / self.interval - 1e-9) * self.job.stall_seconds

    def _until_join(self, num_active: NDArray[np.int64]) -> Array:
        """Return the time until the first checkpoint after a repair at which a node can be taken in; else infinity."""
        arrival = np.where(num_active < self.job.nodes, self._first_back(), np.inf) - self.clock - self.recovery
        late = self.job.write_seconds - self.job.stall_seconds
        number = np.maximum(np.ceil((arrival - late) / self.period), 1)
        return np.asarray(self.recovery + number * self.period + late)

    def _spend(self, where: NDArray[np.bool_], use: str, seconds: Array) -> None:
        self.spent[use] += np.where(where, seconds, 0)

    def _pass_until(self, then: Array, where: NDArray[np.bool_], use: str) -> None:
        """Let time pass until then, or until the end of the simulated time."""
        if not self.is_work:
            then = np.minimum(then, self.seconds)
        then = np.where(where, then, self.clock)  # exactly: a node that comes back then is not away any more
        self._spend(where, use, then - self.clock)
        self.clock = then

    def _send_away(self, where: NDArray[np.bool_]) -> None:
        """Note when the nodes that have failed now come back, each in a place whose node is back already."""
        if (where & (self.back.min(axis=0) > self.clock)).any():
            self.back = np.concatenate([self.back, np.zeros((1, *self.clock.shape))])
        place = self.back.argmin(axis=0)[None]
        again = np.where(where, self.clock + self.job.repair_seconds, self.back.min(axis=0))
        np.put_along_axis(self.back, place, again[None], axis=0)
