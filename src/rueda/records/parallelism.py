"""The same training in each parallel form, measured and predicted, as ``parallelism.json``.

::

    data        every worker holds the model; gradients are all-reduced
    sharded     every worker holds a part of each parameter, its gradient and its optimizer state; parameters are
                gathered for each layer and gradients are reduce-scattered (ZeRO 3, Rajbhandari et al. 2020)
    pipeline    every worker holds some layers; activations and their gradients are sent between neighbours
                (GPipe, Huang et al. 2019)
    tensor      every worker holds a part of each layer's matrices; activations are all-reduced in each layer
                (Megatron, Shoeybi et al. 2019)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from rueda.errors import ProfileError
from rueda.records.json_record import Fraction, JsonRecord, NotNegative, Positive, PositiveInt, one_of

KINDS = ("gradients", "parameters", "activations", "other")
"""what a collective carries"""


def sent_bytes(kind: str, num_bytes: float, size: int) -> float:
    """Return the bytes that each of ``size`` ranks sends for a collective of ``num_bytes``.

    A ring all-reduce sends 2 (N - 1) / N, an all-gather, a reduce-scatter and the other collectives (N - 1) / N
    (Patarasuk & Yuan 2009; Thakur et al. 2005), a ``send`` everything.

    >>> [sent_bytes(kind, 1000, 4) for kind in ("all-reduce", "all-gather", "send", "barrier")]
    [1500.0, 750.0, 1000.0, 0.0]
    """
    if size == 1 or kind == "barrier":
        return 0.0
    if kind == "send":
        return float(num_bytes)
    return (2 if kind == "all-reduce" else 1) * (size - 1) / size * num_bytes


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Bytes of one kind that a worker sends in a step, on average over the workers."""

    carries: Annotated[str, one_of(*KINDS)]
    collective: str
    """``all-reduce``, ``all-gather``, ``reduce-scatter`` or ``send``"""
    num_bytes: NotNegative


@dataclass(frozen=True, kw_only=True)
class WorkerMemory:
    """Bytes that the most loaded worker holds during a step."""

    parameters: NotNegative
    gradients: NotNegative
    optimizer: NotNegative
    """the state of the optimizer"""
    gathered: NotNegative = 0.0
    """the largest layer as sharding gathers it, with its gradient"""
    activations: NotNegative = 0.0
    """what the forward pass keeps for the backward pass, of all micro-batches in flight"""

    @property
    def state(self) -> float:
        """Parameters, gradients and optimizer state: what sharding divides."""
        return self.parameters + self.gradients + self.optimizer

    @property
    def total(self) -> float:
        """Everything that is counted here."""
        return self.state + self.gathered + self.activations


@dataclass(frozen=True, kw_only=True)
class FormPrediction:
    """The predicted step of a model in one parallel form on a cluster."""

    form: str
    """as a recipe has it: ``data``, ``sharded``, ``data 2 x tensor 2`` ..."""
    workers: PositiveInt
    memory: WorkerMemory
    traffic: tuple[Traffic, ...]
    compute_seconds: NotNegative
    """the step of the most loaded worker without communication and without waiting"""
    bubble: Fraction = 0.0
    """(p - 1) / (m + p - 1): share of the step in which a worker of a pipeline waits for its first or last batch"""
    communication_seconds: NotNegative = 0.0
    """all communication of a worker, hidden or not"""
    step_seconds: Positive
    images_per_second: Positive
    fits: bool | None = None
    """whether the memory suffices; None: the memory of the device is not known"""
    notes: tuple[str, ...] = ()

    @property
    def sent(self) -> float:
        """Bytes that a worker sends in a step."""
        return sum(one.num_bytes for one in self.traffic)


@dataclass(frozen=True, kw_only=True)
class MeasuredForm:
    """The same training in one form: what was measured beside what was predicted."""

    form: str
    predicted: FormPrediction
    traffic: tuple[Traffic, ...]
    """measured"""
    memory: WorkerMemory
    """measured: the tensors of the most loaded worker"""
    peak_bytes: NotNegative | None = None
    """highest memory of a worker's process or device during the steps, less what it had before the training was made"""
    idle: Fraction | None = None
    """measured share of the step in which a worker waits for a stage of the pipeline; None: there is no pipeline"""
    schedule_idle: Fraction | None = None
    """the same of the schedule alone, executed with the measured seconds of the passes of each stage"""
    images_per_second: Positive
    spread: NotNegative = 0.0
    """half the interquartile range over the blocks of steps"""
    difference: NotNegative | None = None
    """largest difference of a parameter from that of one worker after ``Parallelism.num_steps`` steps, divided by the
    largest parameter"""
    holds: tuple[tuple[str, ...], ...] = ()
    """of each worker, the layers that it holds, or parts of"""
    whole: tuple[str, ...] = ()
    """layers that tensor parallelism does not split"""

    @property
    def sent(self) -> float:
        """Bytes that a worker sends in a step."""
        return sum(one.num_bytes for one in self.traffic)


@dataclass(frozen=True, kw_only=True)
class Parallelism(JsonRecord):
    """The result of ``rueda parallelism``."""

    FILE: ClassVar = "parallelism.json"
    NOUN: ClassVar = "parallel forms side by side"
    COMMAND: ClassVar = "rueda parallelism TASK"
    ERROR: ClassVar = ProfileError

    task: str
    workers: PositiveInt
    global_batch: PositiveInt
    num_steps: PositiveInt
    """steps after which the parameters are compared"""
    micro_batches: PositiveInt = 1
    """into which a pipeline divides the batch"""
    unit: str = "images"
    precision: str = "float32"
    layers: tuple[str, ...] = ()
    """the model's layers, in the order of the forward pass"""
    forms: tuple[MeasuredForm, ...]
    refused: tuple[tuple[str, str], ...] = ()
    """forms that this task cannot have, and why"""
    kind: str = "parallelism"
