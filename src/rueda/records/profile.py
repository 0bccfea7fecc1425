"""The profile: what was measured about a task on a machine, as ``profile.json``. A plan reads it, and nothing else.

::

    steps            time of a training step against the local batch, stage by stage
    communication    time of an all-reduce against bytes, for some numbers of workers: latency and bandwidth
    together         the same steps while several workers of the machine compute, and while they exchange gradients
    overlap          how much of the communication hides behind the backward pass
    noise            the gradient noise scale, wherever in the training it was measured

All times are seconds, all sizes bytes or examples, on one device unless said otherwise.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rueda.errors import ProfileError
from rueda.records.json_record import FORMAT, JsonRecord, demand, demand_numbers


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """One training step of one worker alone, at one local batch: medians over the repeats, warm-up dropped."""

    batch: int
    seconds: float
    """the whole step; less than the sum of the stages where stages overlap"""
    spread: float
    """half the distance between the quartiles of ``seconds``"""
    repeats: int
    data: float
    """waiting for the batch"""
    forward: float
    """the network and the loss"""
    backward: float
    optimizer: float
    """clipping, the update, and clearing the gradients"""
    processor: float | None = None
    """processor seconds of the step, all threads together: what it costs on a CPU, however busy the machine is"""
    peak_memory_bytes: int | None = None

    @property
    def images_per_second(self) -> float:
        """Throughput of one worker."""
        return self.batch / self.seconds

    @property
    def relative_spread(self) -> float:
        """The spread as a fraction of the time, and so of the throughput."""
        return self.spread / self.seconds


def update_seconds(seconds: float, optimizer: float, accumulate: int) -> float:
    """Give the time of an update of several local batches: each is computed, the optimizer steps once.

    Args:
        seconds: a step of one local batch, the optimizer included.
        optimizer: its share.
        accumulate: local batches in an update.

    >>> update_seconds(0.5, 0.125, 1), update_seconds(0.5, 0.125, 3)
    (0.5, 1.25)
    """
    return accumulate * (seconds - optimizer) + optimizer


@dataclass(frozen=True, kw_only=True)
class AllReduceTime:
    """One measured all-reduce: median over the repeats, the slowest worker's."""

    bytes: int
    seconds: float
    spread: float = 0.0
    repeats: int = 1


@dataclass(frozen=True, kw_only=True)
class Communication:
    """All-reduce among some workers, and the line seconds = latency + bytes / bandwidth fitted to it."""

    workers: int
    backend: str
    """``gloo`` or ``nccl``"""
    points: tuple[AllReduceTime, ...]
    latency: float
    """seconds of an all-reduce of nothing"""
    bandwidth: float
    """bytes of the reduced tensor a second, for large ones"""
    residual: float
    """root mean square of (measured - fitted) / fitted"""

    def seconds(self, num_bytes: float) -> float:
        """Time that the fitted line gives.

        >>> Communication(workers=2, backend="gloo", points=(), latency=1e-3, bandwidth=1e9, residual=0).seconds(1e6)
        0.002
        """
        return self.latency + num_bytes / self.bandwidth


@dataclass(frozen=True, kw_only=True)
class Together:
    """Steps of several workers of one machine at once: what they cost each other, and what the exchange costs.

    The joined step is, at any local batch (Pollux, OSDI 2021),

        T = (compute^overlap + exchange^overlap)^(1 / overlap)

    with ``compute`` taken between the measured batches. ``exchange`` is what a real step sees: the messages, the copies
    into and out of them, and the cores that they take from the computation; more than the line of
    :class:`Communication` says.
    """

    workers: int
    threads: int
    """of each worker: cores / workers on a CPU"""
    compute: tuple[StepTime, ...]
    """all compute at once, nothing is exchanged: the mean over the workers"""
    joined: tuple[StepTime, ...] = ()
    """real steps, gradients exchanged"""
    exchange: float = 0.0
    """seconds that the exchange of all gradients takes by itself, fitted to ``joined``"""
    overlap: float = 1.0
    """gamma, fitted to ``joined``"""
    residual: float = 0.0
    """root mean square of (measured - fitted) / fitted over ``joined``"""

    def joined_seconds(self, compute: float) -> float:
        """Time of a real step whose computation takes ``compute`` seconds.

        >>> pair = Together(workers=2, threads=1, compute=(), exchange=0.03, overlap=1.0)
        >>> round(pair.joined_seconds(0.04), 3)
        0.07
        """
        return overlapped(compute, self.exchange, self.overlap)

    def contention(self, alone: Sequence[StepTime]) -> float | None:
        """Say how many times longer each of these workers computes than one alone: the median over the batches.

        None if no batch was measured both ways.
        """
        seconds = {step.batch: step.seconds for step in alone}
        ratios = [step.seconds / seconds[step.batch] for step in self.compute if step.batch in seconds]
        return statistics.median(ratios) if ratios else None


def overlapped(compute: float, exchange: float, gamma: float) -> float:
    """Give the time of a step that computes and exchanges, T = (compute^gamma + exchange^gamma)^(1 / gamma).

    Pollux (Qiao et al. 2021): with gamma = 1 nothing of the exchange hides behind the computation; with a large one the
    step takes as long as the longer of the two.

    >>> overlapped(0.03, 0.04, 1.0), round(overlapped(0.03, 0.04, 2.0), 3), round(overlapped(0.03, 0.04, 99.0), 3)
    (0.07, 0.05, 0.04)
    """
    longest = max(compute, exchange)  # divided out: a high power of seconds would underflow
    if longest <= 0:
        return 0.0
    return float(longest * ((compute / longest) ** gamma + (exchange / longest) ** gamma) ** (1 / gamma))


@dataclass(frozen=True, kw_only=True)
class NoiseScale:
    """The gradient noise scale B = S / |G|² (McCandlish et al. 2018), averaged over some steps of a training."""

    value: float
    """B in examples; infinite or NaN: the steps were too few to tell |G|² from 0"""
    low: float
    """lower end of the interval"""
    high: float
    """upper end"""
    confidence: float = 0.95
    variance: float
    """S, the trace of the covariance of one example's gradient"""
    square: float
    """|G|², of the true gradient"""
    step: int
    """updates made when it was measured: it grows in training"""
    steps: int
    """how many steps were averaged"""
    epochs: float = 0.0
    """the same place in epochs"""
    source: str = "workers"
    """whose gradients were compared: ``workers``, ``virtual-workers``, ``micro-batches`` or ``halves``"""
    group: str | None = None
    """a group of layers; None is the whole model"""


@dataclass(frozen=True, kw_only=True)
class Profile(JsonRecord):
    """What a plan knows about a task on a machine."""

    FILE: ClassVar = "profile.json"
    NOUN: ClassVar = "a profile"
    COMMAND: ClassVar = "rueda measure"
    ERROR: ClassVar = ProfileError

    task: str
    device: str
    """what computed: ``cpu (2 threads of Intel ...)`` or a GPU's name"""
    threads: int
    """of the worker alone in ``steps``: all cores of a CPU; several workers share them (``together``)"""
    precision: str
    parameters: int
    """trainable numbers in the model"""
    gradient_bytes: int
    """what one exchange of gradients carries"""
    examples: int
    """in the training set"""
    recipe: str
    """the recipe that was measured, as TOML"""
    steps: tuple[StepTime, ...]
    largest_batch: int | None = None
    """the largest local batch that fits, found where memory ended, else predicted by the line of memory against batch;
    None: not known"""
    memory_bytes: int | None = None
    """of the device"""
    communication: tuple[Communication, ...] = ()
    together: tuple[Together, ...] = ()
    """on this very machine a plan takes these, where the number of workers was measured"""
    buckets: int = 1
    """messages into which an exchange of the gradients is cut"""
    overlap: float | None = None
    """gamma in T = (compute^gamma + sync^gamma)^(1/gamma), fitted; 1 hides nothing; None: not measured; of the first
    of ``together``"""
    contention: float | None = None
    """compute seconds of a step when all workers of the measured machine compute, against one alone; 1: they do not
    slow each other; None: not measured; the median over the batches of the first of ``together``, which has more"""
    noise: tuple[NoiseScale, ...] = ()
    environment: dict[str, Any] = field(default_factory=dict)
    command: str = ""
    format: int = FORMAT

    def check(self) -> None:
        """Refuse what would fail later, far from the file."""
        if not self.steps:
            raise ValueError("profile.steps: expected at least one measured batch, got none")
        shared = [step for each in self.together for step in (*each.compute, *each.joined)]
        for step in (*self.steps, *shared):
            if not (step.batch >= 1 and step.seconds > 0):
                got = f"{step.batch} and {step.seconds}"
                raise ValueError(f"profile.steps: expected a positive batch and time, got {got}")
        for each in self.together:
            if not (each.workers >= 2 and each.exchange >= 0 and each.overlap >= 1):
                raise ValueError(
                    "profile.together: expected >= 2 workers, exchange >= 0 and overlap >= 1, "
                    f"got {each.workers}, {each.exchange} and {each.overlap}"
                )
        for name in ("parameters", "gradient_bytes", "examples", "threads", "buckets"):
            demand(getattr(self, name) >= 1, f"profile.{name}", "at least 1", getattr(self, name))
        for link in self.communication:
            if not (link.workers >= 2 and link.latency >= 0 and link.bandwidth > 0):
                raise ValueError(f"profile.communication: expected >= 2 workers, latency and bandwidth, got {link}")
            demand_numbers(link, "profile.communication", above=("bandwidth",), from_zero=("latency",))
            for point in link.points:
                demand_numbers(point, "profile.communication.points", above=("bytes", "seconds"))
