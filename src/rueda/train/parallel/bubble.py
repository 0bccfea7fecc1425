"""The bubble of a pipeline: the share of a step in which a stage waits; predicted and measured.

The first micro-batch reaches the last stage only after all others have worked on it, and its gradient returns the same
way. With p workers, m micro-batches and equal stages the share of a step in which a worker is idle is

    GPipe, 1F1B      (p - 1) / (m + p - 1)              Huang et al. 2019, arXiv:1811.06965
    interleaved      (p - 1) / (v m + p - 1)            Narayanan et al. 2021, arXiv:2104.04473; v stages a worker

1F1B idles as long as GPipe, but keeps the activations of p micro-batches instead of m. Where the stages take different
times, :func:`simulate` executes the order of the schedule with the measured time of each stage.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple


class Action(NamedTuple):
    """One forward or backward pass of a micro-batch through a stage."""

    kind: str
    """``F`` or ``B``"""
    stage: int
    micro_batch: int


def idle_share(workers: int, micro_batches: int, chunks: int = 1) -> float:
    """Return the share of a step in which a worker of a pipeline with equal stages is idle.

    >>> idle_share(4, 8), round(idle_share(4, 8, chunks=2), 4)
    (0.2727272727272727, 0.1579)
    """
    return (workers - 1) / (chunks * micro_batches + workers - 1)


def order_of(schedule: str, workers: int, micro_batches: int, chunks: int = 1) -> list[list[Action]]:
    """Return what each worker computes, in its order; the same as torch.distributed.pipelining's.

    >>> "".join(f"{kind}{number} " for kind, _, number in order_of("1f1b", 2, 3)[0])
    'F0 F1 B0 F2 B1 B2 '
    """
    if schedule == "gpipe":
        return [
            [Action(kind, rank, number) for kind in "FB" for number in range(micro_batches)] for rank in range(workers)
        ]
    if schedule == "1f1b":
        return [_one_forward_one_backward(rank, workers, micro_batches) for rank in range(workers)]
    return [_interleaved(rank, workers, micro_batches, chunks) for rank in range(workers)]


def _one_forward_one_backward(rank: int, workers: int, micro_batches: int) -> list[Action]:
    warmup = min(micro_batches, workers - rank)
    order = [Action("F", rank, number) for number in range(warmup)]
    for number in range(micro_batches):
        order.append(Action("B", rank, number))
        if number + warmup < micro_batches:
            order.append(Action("F", rank, number + warmup))
    return order


def _interleaved(rank: int, workers: int, micro_batches: int, chunks: int) -> list[Action]:
    """Return the order of Narayanan et al.: rounds of micro-batches pass through one chunk after the other."""
    per_round = micro_batches // max(1, micro_batches // workers)
    total = chunks * micro_batches
    warmup = min((chunks - 1) * per_round + 2 * (workers - 1 - rank), total)

    def action(kind: str, step: int) -> Action:
        chunk = (step // per_round) % chunks
        chunk = chunk if kind == "F" else chunks - 1 - chunk
        number = step // (per_round * chunks) * per_round + step % per_round
        return Action(kind, chunk * workers + rank, number)

    order = [action("F", step) for step in range(warmup)]
    for step in range(total):
        if step + warmup < total:
            order.append(action("F", step + warmup))
        order.append(action("B", step))
    return order


@dataclass(frozen=True, kw_only=True)
class SimulatedStep:
    """The result of a simulation."""

    seconds: float
    """from the first forward pass to the last backward pass of any worker"""
    busy: list[float]
    """by worker, the seconds in which it computes"""

    @property
    def idle(self) -> list[float]:
        """By worker, the share of the step in which it does not compute."""
        return [1 - busy / self.seconds for busy in self.busy]


def simulate(
    order: Sequence[Sequence[Action]], forward: Sequence[float], backward: Sequence[float], *, transfer: float = 0.0
) -> SimulatedStep:
    """Execute a schedule with the times of its stages.

    A worker computes its actions one after the other; each waits for the outputs of the stage before it, or for the
    gradients of the stage after it, which take ``transfer`` seconds to arrive from another worker.

    Args:
        order: what each worker computes (:func:`order_of`).
        forward: by stage, the seconds of the forward pass of a micro-batch.
        backward: by stage, the seconds of its backward pass.
        transfer: the seconds that a message takes.

    >>> step = simulate(order_of("gpipe", 2, 3), [1, 1], [2, 2])
    >>> step.seconds, step.idle == [idle_share(2, 3)] * 2
    (12.0, True)
    """
    last_stage, workers = len(forward) - 1, len(order)
    ended: dict[Action, float] = {}
    clocks, places = [0.0] * workers, [0] * workers
    while any(place < len(actions) for place, actions in zip(places, order, strict=True)):
        progressed = False
        for rank, actions in enumerate(order):
            while places[rank] < len(actions):
                action = actions[places[rank]]
                needed = _needed(action, last_stage)
                if needed is not None and needed not in ended:
                    break
                elsewhere = needed is not None and needed.stage % workers != rank
                ready = 0.0 if needed is None else ended[needed] + transfer * elsewhere
                seconds = (forward if action.kind == "F" else backward)[action.stage]
                clocks[rank] = max(clocks[rank], ready) + seconds
                ended[action] = clocks[rank]
                places[rank] += 1
                progressed = True
        assert progressed, "the order waits for itself"
    busy = [
        sum((forward if one.kind == "F" else backward)[one.stage] for one in actions) for actions in order
    ]  # fmt: skip
    return SimulatedStep(seconds=float(max(clocks)), busy=[float(each) for each in busy])


def _needed(action: Action, last_stage: int) -> Action | None:
    if action.kind == "F":
        return action._replace(stage=action.stage - 1) if action.stage > 0 else None
    return action._replace(kind="F") if action.stage == last_stage else action._replace(stage=action.stage + 1)


@dataclass
class StageClock:
    """Adds up the seconds in which a worker computes, by stage and kind of pass, and those of its steps."""

    computing: dict[tuple[str, int], float] = field(default_factory=dict)
    """by kind (``F`` or ``B``) and stage, seconds of all micro-batches"""
    counts: dict[tuple[str, int], int] = field(default_factory=dict)
    step_seconds: float = 0.0
    num_steps: int = 0

    @contextmanager
    def computes(self, kind: str, stage: int, *, counts: bool = True) -> Iterator[None]:
        """Measure one pass; the loss is part of a forward pass, which it does not count again."""
        began = time.perf_counter()
        try:
            yield
        finally:
            key = kind, stage
            self.computing[key] = self.computing.get(key, 0.0) + time.perf_counter() - began
            self.counts[key] = self.counts.get(key, 0) + counts

    @contextmanager
    def step(self) -> Iterator[None]:
        """Measure one step: all micro-batches through the schedule."""
        began = time.perf_counter()
        yield
        self.step_seconds += time.perf_counter() - began
        self.num_steps += 1

    @property
    def idle(self) -> float:
        """The share of the steps in which this worker did not compute."""
        return 1 - sum(self.computing.values()) / self.step_seconds

    def mean_seconds(self) -> dict[tuple[str, int], float]:
        """Return the mean seconds of a pass, by kind and stage."""
        return {key: seconds / max(1, self.counts[key]) for key, seconds in self.computing.items()}


def predicted_step(
    schedule: str, workers: int, micro_batches: int, chunks: int, seconds: Mapping[tuple[str, int], float]
) -> SimulatedStep:
    """Simulate a schedule from the measured seconds of a pass, by kind and stage, of all workers."""
    stages = range(workers * chunks)
    forward, backward = ([seconds[kind, stage] for stage in stages] for kind in "FB")
    return simulate(order_of(schedule, workers, micro_batches, chunks), forward, backward)
