"""What failures cost a planned training: how often it is interrupted, the interval of its checkpoints, the spare nodes.

Part of ``plan.json``; :mod:`rueda.plan.failure_planning` makes it.
"""

from __future__ import annotations

from dataclasses import dataclass

from rueda.records.json_record import Fraction, NotNegative, NotNegativeInt, Positive, PositiveInt, demand

USES = {
    "stalled": "saving", "lost": "lost work", "recovering": "noticing and recovering", "waiting": "waiting for nodes",
    "missing": "missing nodes",
}  # fmt: skip
"""where the time goes that is not useful, by the fields of :class:`SimulatedGoodput`"""


@dataclass(frozen=True, kw_only=True)
class JobFailures:
    """A training that runs on some nodes, how often one of them fails, and what an interruption takes."""

    nodes: PositiveInt
    """nodes on which all workers compute; each failure of one of them interrupts the training"""
    mtbf_seconds: Positive
    """mean time between failures of one node"""
    hardware: Fraction
    """fraction of the failures after which the node is away for repair; after the others it goes on"""
    stall_seconds: Positive
    """how long a checkpoint interrupts the computation"""
    write_seconds: Positive
    """from the begin of a checkpoint until it is complete; longer than the stall if it is written asynchronously"""
    detect_seconds: NotNegative
    """from a failure until it is noticed"""
    recover_seconds: NotNegative
    """from then on, or from the arrival of a node, until the training computes again"""
    repair_seconds: NotNegative
    """how long a node is away"""

    @property
    def job_mtbf_seconds(self) -> float:
        """The mean time between two interruptions of the training, while all nodes compute."""
        return self.mtbf_seconds / self.nodes


@dataclass(frozen=True, kw_only=True)
class SimulatedGoodput:
    """The goodput of many simulated repetitions of a training, and where the rest of the time went.

    The fractions of the time add up to 1.
    """

    interval_seconds: Positive
    """computation between two checkpoints"""
    spares: NotNegativeInt
    """spare nodes"""
    elastic: bool
    """whether the training goes on with fewer nodes when there is no spare one; otherwise it waits for a repair"""
    goodput: Fraction
    """useful computation / time, as a fraction of what all nodes make without failures and checkpoints"""
    standard_error: NotNegative
    stalled: Fraction
    """saving"""
    lost: Fraction
    """computing what a failure then undid"""
    recovering: Fraction
    """noticing failures, starting again"""
    waiting: Fraction
    """without enough nodes"""
    missing: Fraction
    """what nodes that are away would have computed"""
    failures: NotNegative
    """mean number of interruptions by failures"""


@dataclass(frozen=True, kw_only=True)
class FailurePlan:
    """The checkpoint interval and the spare nodes of a planned training, with the simulations behind them."""

    job: JobFailures
    source: str
    """where the rate of failures comes from"""
    hours: Positive
    """how long the training lasts"""
    expected: NotNegative
    """expected number of failures meanwhile"""
    simulated_hours: Positive
    """how much of it was simulated: less, where there are hundreds of failures"""
    workers_per_node: PositiveInt
    young_seconds: Positive
    """the best interval by Young 1974"""
    daly_seconds: Positive
    """the best interval by Daly 2006"""
    interval_seconds: Positive
    """the chosen interval"""
    reason: str
    flat: tuple[float, float]
    """the shortest and the longest simulated interval whose goodput is within 0.5 points of the best"""
    spares: NotNegativeInt
    """the chosen number of spare nodes"""
    elastic: bool
    intervals: tuple[SimulatedGoodput, ...]
    """the simulated intervals, in ascending order, with the chosen spares"""
    by_spares: tuple[SimulatedGoodput, ...]
    """numbers of spares, waiting and elastic, with the formula's interval"""
    repetitions: PositiveInt
    seed: int = 0

    def check(self) -> None:
        """Raise ValueError if the simulations of the choice are missing."""
        demand(bool(self.intervals), "plan.failures.intervals", "a simulation or more", "none")
        own = (self.spares, self.elastic)
        found = any((row.spares, row.elastic) == own for row in self.by_spares)
        demand(found, "plan.failures.by_spares", "a simulation of the chosen number of spares", "none")

    @property
    def chosen(self) -> SimulatedGoodput:
        """The simulation of the chosen interval and spares."""
        return min(self.intervals, key=lambda row: abs(row.interval_seconds - self.interval_seconds))

    @property
    def best(self) -> SimulatedGoodput:
        """The simulated interval with the most goodput."""
        return max(self.intervals, key=lambda row: row.goodput)
