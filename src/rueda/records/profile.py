"""The profile: the measurements of a task on a machine, as ``profile.json``, from which a plan is made.

::

    steps            time of a training step against the local batch, stage by stage
    communication    time of an all-reduce against bytes, for some numbers of workers: latency and bandwidth
    together         the same steps with several workers on the machine, without and with the all-reduce
    overlap          how much of the communication overlaps with the backward pass
    noise            the gradient noise scale at some steps of a training
    work             floating-point operations and bytes of a step, counted, from which a device that was not measured
                     is predicted (:mod:`rueda.plan.roofline`)

All times are seconds, all sizes bytes or examples, on one device unless said otherwise.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from rueda.errors import ProfileError
from rueda.records.json_record import JsonRecord, NotNegative, NotNegativeInt, PositiveInt, Rule, at_least, demand
from rueda.records.model_layers import LayerWork
from rueda.records.task_file import TaskFile

TwoOrMore = Annotated[int, at_least(2)]
# Whatever was measured lies far within these bounds; beyond them, quotients would overflow or become 0.
Measured = Annotated[float, Rule("a number, more than 0 (from 1e-12 to 1e18)", lambda value: 1e-12 <= value <= 1e18)]
Duration = Annotated[float, Rule("a number, 0 or more (up to 1e9 s)", lambda value: 0 <= value <= 1e9)]


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """One worker's training step at one local batch: medians over the repeats, without the warm-up steps."""

    batch: PositiveInt
    seconds: Measured
    """the whole step, which may take less than the sum of its stages, since they overlap on a GPU"""
    spread: Duration
    """half the interquartile range of ``seconds``"""
    repeats: int
    data: Duration
    """waiting for the batch"""
    forward: Duration
    """the network and the loss"""
    backward: Duration
    optimizer: Duration
    """clipping, the update, and clearing the gradients"""
    processor: float | None = None
    """processor time of the step on a CPU, summed over its threads: it hardly depends on other load on the machine"""
    peak_memory_bytes: int | None = None

    @property
    def images_per_second(self) -> float:
        """The throughput of one worker."""
        return self.batch / self.seconds

    @property
    def relative_spread(self) -> float:
        """The spread as a fraction of the time, and so of the throughput."""
        return self.spread / self.seconds


def update_seconds(seconds: float, optimizer: float, accumulate: int) -> float:
    """Return the time of an update with gradient accumulation: the optimizer steps once for several local batches.

    Args:
        seconds: time of a step with one local batch, the optimizer included.
        optimizer: time of the optimizer.
        accumulate: local batches per update.

    >>> update_seconds(0.5, 0.125, 1), update_seconds(0.5, 0.125, 3)
    (0.5, 1.25)
    """
    return accumulate * (seconds - optimizer) + optimizer


@dataclass(frozen=True, kw_only=True)
class StepWork:
    """The work of a training step, counted from the shapes of its tensors: it is the same on every device."""

    flops: NotNegative
    """per example: matrix products, convolutions and attention of one forward and one backward pass"""
    saved_bytes: NotNegative
    """per example: what the forward pass keeps for the backward pass, in the data type of the parameters; a step writes
    it once and reads it once"""
    update_bytes: NotNegativeInt
    """per update: trainable parameters, their gradients and the optimizer's state; each is read and written once"""


@dataclass(frozen=True, kw_only=True)
class AllReduceTime:
    """The time of an all-reduce: median over the repeats of the slowest worker's time."""

    bytes: PositiveInt
    seconds: Measured
    spread: Duration = 0.0
    repeats: int = 1


@dataclass(frozen=True, kw_only=True)
class Communication:
    """All-reduce times of some workers, and the fitted line seconds = latency + bytes / bandwidth."""

    workers: TwoOrMore
    backend: str
    """``gloo`` or ``nccl``"""
    points: tuple[AllReduceTime, ...]
    latency: Duration
    """seconds of an all-reduce of 0 bytes"""
    bandwidth: Measured
    """bytes of the reduced tensor per second, for large tensors"""
    residual: float
    """root mean square of (measured - fitted) / fitted"""

    def seconds(self, num_bytes: float) -> float:
        """Return the time that the fitted line predicts.

        >>> Communication(workers=2, backend="gloo", points=(), latency=1e-3, bandwidth=1e9, residual=0).seconds(1e6)
        0.002
        """
        return self.latency + num_bytes / self.bandwidth


@dataclass(frozen=True, kw_only=True)
class Together:
    """Steps of several workers of one machine at once: how they slow each other, and what the all-reduce costs.

    The joined step is, at any local batch (Pollux, OSDI 2021),

        T = (compute^overlap + exchange^overlap)^(1 / overlap)

    with ``compute`` interpolated between the measured batches. ``exchange`` is the cost of the all-reduce in a real
    step: the messages, the copies into and out of the buckets, and the cores that they take from the computation. It is
    more than :class:`Communication` predicts.
    """

    workers: TwoOrMore
    threads: int
    """threads of each worker: cores / workers on a CPU"""
    compute: tuple[StepTime, ...]
    """steps of all workers at once without all-reduce, mean over the workers"""
    joined: tuple[StepTime, ...] = ()
    """real steps, with all-reduce"""
    exchange: Duration = 0.0
    """seconds of the all-reduce of all gradients by itself, fitted to ``joined``"""
    overlap: Annotated[float, at_least(1)] = 1.0
    """gamma, fitted to ``joined``"""
    residual: float = 0.0
    """root mean square of (measured - fitted) / fitted over ``joined``"""

    def joined_seconds(self, compute: float) -> float:
        """Return the time of a real step whose computation takes ``compute`` seconds.

        >>> pair = Together(workers=2, threads=1, compute=(), exchange=0.03, overlap=1.0)
        >>> round(pair.joined_seconds(0.04), 3)
        0.07
        """
        return overlapped(compute, self.exchange, self.overlap)

    def contention(self, alone: Sequence[StepTime]) -> float | None:
        """Return how many times longer these workers compute than one worker alone: the median over the batches.

        None if no batch was measured both ways.
        """
        seconds = {step.batch: step.seconds for step in alone}
        ratios = [step.seconds / seconds[step.batch] for step in self.compute if step.batch in seconds]
        return statistics.median(ratios) if ratios else None


def overlapped(compute: float, exchange: float, gamma: float) -> float:
    """Return the time of a step with an all-reduce, T = (compute^gamma + exchange^gamma)^(1 / gamma).

    Pollux (Qiao et al. 2021): with gamma = 1 nothing overlaps; with a large gamma the step takes as long as the longer
    of the two.

    >>> overlapped(0.03, 0.04, 1.0), round(overlapped(0.03, 0.04, 2.0), 3), round(overlapped(0.03, 0.04, 99.0), 3)
    (0.07, 0.05, 0.04)
    """
    longest = max(compute, exchange)  # divided out, since a high power of seconds would underflow
    if longest <= 0:
        return 0.0
    return float(longest * ((compute / longest) ** gamma + (exchange / longest) ** gamma) ** (1 / gamma))


@dataclass(frozen=True, kw_only=True)
class NoiseScale:
    """The gradient noise scale B = S / |G|² (McCandlish et al. 2018), averaged over some steps of a training."""

    value: float
    """B in examples; infinite or NaN if the steps were too few to distinguish |G|² from 0"""
    low: float
    """lower end of the interval"""
    high: float
    """upper end"""
    confidence: float = 0.95
    variance: float
    """S, the trace of the covariance of the gradients of single examples"""
    square: float
    """|G|², the squared norm of the true gradient"""
    step: int
    """updates made before the measurement; the noise scale grows during training"""
    steps: int
    """how many steps were averaged"""
    epochs: float = 0.0
    """the same in epochs"""
    source: str = "workers"
    """whose gradients were compared: ``workers``, ``virtual-workers``, ``micro-batches`` or ``halves``"""
    group: str | None = None
    """the group of layers; None: the whole model"""


@dataclass(frozen=True, kw_only=True)
class Profile(JsonRecord):
    """The measurements of a task on a machine."""

    FILE: ClassVar = "profile.json"
    NOUN: ClassVar = "a profile"
    COMMAND: ClassVar = "rueda measure"
    ERROR: ClassVar = ProfileError

    task: str
    task_file: TaskFile | None = None
    """the file that defines the task; None for a built-in task, and in older files"""
    unit: str = "images"
    """what is counted per second: images or examples"""
    device: str
    """the device: ``cpu (2 threads of Intel ...)`` or the name of a GPU"""
    threads: PositiveInt
    """threads of the single worker of ``steps``: all cores of a CPU; in ``together`` the workers share them"""
    precision: str
    parameters: PositiveInt
    """number of trainable parameters"""
    tensors: PositiveInt | None = None
    """number of trainable parameter tensors, two or so for each layer; None: not known, in older files"""
    gradient_bytes: PositiveInt
    """bytes of all gradients"""
    compressed_bytes: PositiveInt | None = None
    """bytes that the all-reduces of an update carry where the recipe compresses gradients; None: it does not"""
    batch_norm: bool | None = None
    """whether the model has batch norm; None: not known, as of a Keras model and in older files"""
    tolerance: NotNegative | None = None
    """how much worse a result may be and still be kept, as the task says; None: the default"""
    examples: PositiveInt
    """size of the training set"""
    recipe: str
    """the recipe that was measured, as TOML"""
    steps: Annotated[tuple[StepTime, ...], Rule("at least one measured batch", bool)]
    largest_batch: int | None = None
    """the largest local batch that fits in memory, as measured, or else as predicted by a line through the measured
    memory; None: not known"""
    memory_bytes: int | None = None
    """memory of the device"""
    communication: tuple[Communication, ...] = ()
    together: tuple[Together, ...] = ()
    """measurements of several workers; a plan for the same machine prefers them to the model of ``steps``"""
    buckets: PositiveInt = 1
    """number of buckets of the gradients' all-reduce"""
    overlap: Annotated[float, at_least(1)] | None = None
    """gamma in T = (compute^gamma + sync^gamma)^(1/gamma), of the first of ``together``; 1: no overlap; None: not
    measured"""
    contention: float | None = None
    """compute time of a step with all workers of the first of ``together``, divided by that of one worker alone (median
    over the batches); 1: the workers do not slow each other; None: not measured"""
    noise: tuple[NoiseScale, ...] = ()
    work: StepWork | None = None
    """the counted work of a step; None: not known, as of a Keras model, of a model that needs values to compute shapes,
    and in older files"""
    layers: tuple[LayerWork, ...] = ()
    """the model's layers, for the parallel forms (:mod:`rueda.plan.parallel_forms`); empty: not known, as ``work``"""

    @property
    def all_reduce_bytes(self) -> int:
        """The bytes that the all-reduces of an update carry."""
        return self.compressed_bytes or self.gradient_bytes

    def check(self) -> None:
        """Raise ValueError if a step's optimizer takes longer than the step."""
        for number, step in enumerate(self.steps):
            demand(
                step.optimizer <= step.seconds, f"profile.steps[{number}].optimizer", "at most seconds", step.optimizer
            )
