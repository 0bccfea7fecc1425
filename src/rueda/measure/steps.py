"""Measure the time and memory of a training step at each local batch.

Phases: **probe** a few steps at each batch, from small to large, until throughput saturates, a step takes too long or
memory is full; this also warms up and reads the memory. Then **rounds**: the batches are measured in turn, in rising
and then in falling order, so that other load on the machine affects all alike. In each turn a batch makes one step that
does not count, then blocks of steps. The result is the median over all blocks.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from rueda.measure.clock import STAGES, StageClock
from rueda.measure.memory import HEADROOM, largest_batch, peak_bytes, reset_peak, usable_bytes
from rueda.measure.spread import median_and_spread
from rueda.records import Recipe
from rueda.records.profile import StepTime
from rueda.records.recipe.batches import check_batches
from rueda.records.throughput import saturation
from rueda.tasks import Task
from rueda.train.regime import at_fixed_batch
from rueda.train.training import Training
from rueda.world import World
from rueda.world.device import is_gpu, wait_for

RATE = 1e-6
"""learning rate of measured steps: so small that nothing diverges; the time does not depend on it"""
BLOCK_SECONDS = 0.03
BEYOND_SATURATION = 2
"""how many further batches are probed after the one at which throughput saturates"""
FEWEST_ROUNDS = 3


@dataclass(frozen=True)
class Block:
    """Consecutive steps: the mean time of a step, of its stages and, on a CPU, its processor time, in seconds."""

    seconds: float
    stages: dict[str, float] | None
    processor: float | None = None


class Steps(Protocol):
    """The interface of an object that makes the steps to measure, for a task or for a Keras model."""

    device: torch.device

    def check(self, batches: Sequence[int]) -> None:
        """Refuse a batch that is larger than the training set."""

    def block(self, batch: int, num_steps: int, *, stages: bool) -> Block:
        """Make steps at a local batch and time them."""

    def free_memory(self) -> None:
        """Free memory after a batch that did not fit."""


class Stepper:
    """Makes the updates of ``rueda train`` at any local batch, at a learning rate of nearly 0."""

    def __init__(self, task: Task, recipe: Recipe, world: World) -> None:
        self.clock = StageClock(world.device)
        recipe = at_fixed_batch(recipe, recipe.batch).change(workers=world.size)
        self.training = Training(task, recipe, world)
        self.device = world.device
        self.num_examples = self.training.loader.num_examples

    def check(self, batches: Sequence[int]) -> None:
        """Refuse a batch that is larger than the training set."""
        check_batches(batches, self.num_examples // self.training.world.size)

    def block(self, batch: int, num_steps: int, *, stages: bool) -> Block:
        """Make steps at a local batch and time them; ``stages`` turns the clock of the stages on."""
        training, clock = self.training, self.clock
        training.fix_batch(batch)
        clock.on = stages
        clock.reset()
        wait_for(self.device)
        started, busy = time.perf_counter(), time.process_time()
        for _ in range(num_steps):
            training.step(rate=RATE, timer=clock)
        wait_for(self.device)
        seconds = (time.perf_counter() - started) / num_steps
        return Block(
            seconds,
            {name: total / num_steps for name, total in clock.seconds.items()} if stages else None,
            (time.process_time() - busy) / num_steps if self.device.type == "cpu" else None,
        )

    def free_memory(self) -> None:
        """Free the gradients and the memory that torch keeps."""
        self.training.optimizer.zero_grad(set_to_none=True)
        if is_gpu(self.device):
            torch.get_device_module(self.device).empty_cache()


def blocks_of(stepper: Steps, batch: int, seconds: float, estimate: float) -> list[Block]:
    """Make blocks of steps for about ``seconds``, at least one; on a GPU every second block times the stages."""
    length = max(1, round(BLOCK_SECONDS / estimate))
    count = max(1, round(seconds / (length * estimate)))
    if stepper.device.type == "cpu":  # timing the stages costs nothing here, so every block does
        return [stepper.block(batch, length, stages=True) for _ in range(count)]
    return [stepper.block(batch, length, stages=bool(number % 2)) for number in range(max(2, count))]


def summary(batch: int, blocks: Sequence[Block], peak: int | None = None) -> StepTime:
    """Summarise blocks by their medians.

    >>> stages = {"data": 0.1, "forward": 0.3, "backward": 0.5, "optimizer": 0.1}
    >>> summary(8, [Block(seconds, stages) for seconds in (1.0, 1.2, 9.0)]).seconds
    1.2
    """
    whole = [block.seconds for block in blocks if block.stages is None] or [block.seconds for block in blocks]
    staged = [block.stages for block in blocks if block.stages is not None]
    seconds, spread = median_and_spread(whole)
    processor = [block.processor for block in blocks if block.processor is not None]
    parts = {name: statistics.median(stages[name] for stages in staged) if staged else 0.0 for name in STAGES}
    return StepTime(
        batch=batch, seconds=seconds, spread=spread, repeats=len(whole),
        peak_memory_bytes=peak, processor=statistics.median(processor) if processor else None, **parts,
    )  # fmt: skip


@dataclass
class ProbedBatches:
    """A rough time and the peak memory of each probed batch."""

    estimates: dict[int, float] = field(default_factory=dict)
    peaks: dict[int, int | None] = field(default_factory=dict)
    full: int | None = None
    """the first batch that did not fit into memory"""


def default_batches(num_examples: int, recipe_batch: int, *, quick: bool) -> list[int]:
    """Choose the batches to probe: the recipe's own times powers of two, or of four if ``quick``.

    >>> default_batches(8192, 64, quick=True), default_batches(100, 10, quick=True)
    ([4, 16, 64, 256, 1024, 4096], [2, 10, 40])
    """
    factor, most = 4 if quick else 2, max(1, num_examples // 2)
    found = {min(recipe_batch, most)}
    while min(found) // factor >= 2 and min(found) > 4:
        found.add(min(found) // factor)
    while max(found) * factor <= most:
        found.add(max(found) * factor)
    return sorted(found)


def probe_batches(
    stepper: Steps, batches: Sequence[int], *, longest: float, all_of_them: bool, seconds: float = math.inf
) -> ProbedBatches:
    """Make a few steps at each batch, from small to large.

    Args:
        stepper: makes the steps.
        batches: the batches to probe.
        longest: stop after a batch whose step takes more seconds.
        all_of_them: do not stop when throughput saturates or a step takes long.
        seconds: stop after the batch during which this time has passed.
    """
    found, started = ProbedBatches(), time.perf_counter()
    for batch in sorted(batches):
        if not _would_fit(found, batch, stepper.device):
            found.full = batch
            break
        reset_peak(stepper.device)
        try:
            stepper.block(batch, 1, stages=True)
            times = [stepper.block(batch, 1, stages=True).seconds for _ in range(2)]
        except (RuntimeError, MemoryError) as error:
            if not _is_out_of_memory(error) or not found.estimates:
                raise
            found.full = batch
            stepper.free_memory()
            break
        found.estimates[batch], found.peaks[batch] = min(times), peak_bytes(stepper.device)
        enough = saturation({size: size / each for size, each in found.estimates.items()})
        beyond = 0 if enough is None else sum(size > enough for size in found.estimates)
        passed = time.perf_counter() - started
        over = min(times) > longest or beyond >= BEYOND_SATURATION or passed > seconds
        if over and not all_of_them:
            break
    return found


def more_rounds(done: int, passed: float, seconds: float) -> bool:
    """Tell whether to start another round: until the seconds have passed, or twice as long if rounds are too few.

    >>> more_rounds(9, 4.0, seconds=5.0), more_rounds(2, 6.0, seconds=5.0), more_rounds(2, 11.0, seconds=5.0)
    (True, True, False)
    """
    return passed < seconds or (done < FEWEST_ROUNDS and passed < 2 * seconds)


def measure_steps(
    stepper: Steps,
    batches: Sequence[int],
    *,
    seconds: float,
    longest: float = 5.0,
    all_of_them: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> tuple[list[StepTime], int | None]:
    """Measure steps at several local batches; return them and the largest batch that fits into memory.

    Args:
        stepper: makes the steps.
        batches: the candidates.
        seconds: duration of the rounds, all batches together.
        longest: no larger batch is tried after one whose step takes more seconds.
        all_of_them: measure each batch that fits, because the user chose them.
        tell: called with a line about what is being done.
    """
    stepper.check(batches)
    tell("step time: trying batches")
    first = probe_batches(stepper, batches, longest=longest, all_of_them=all_of_them, seconds=seconds)
    blocks: dict[int, list[Block]] = {batch: [] for batch in first.estimates}
    order = list(blocks)
    share = seconds / (2 * FEWEST_ROUNDS) / len(order)
    started, number = time.perf_counter(), 0
    while number == 0 or more_rounds(number, time.perf_counter() - started, seconds):
        tell(f"step time: round {number + 1}")
        for batch in order:
            stepper.block(batch, 1, stages=True)
            blocks[batch] += blocks_of(stepper, batch, share, first.estimates[batch])
        order.reverse()
        number += 1
    found = [summary(batch, blocks[batch], first.peaks[batch]) for batch in sorted(blocks)]
    if first.full is not None and is_gpu(stepper.device):
        return found, max(blocks)
    return found, largest_batch(first.peaks, usable_bytes(stepper.device))


def _would_fit(found: ProbedBatches, batch: int, device: torch.device) -> bool:
    """Tell whether a batch may be tried: a GPU would raise an error, but an operating system kills the process."""
    if is_gpu(device) or not found.estimates:
        return True
    most = largest_batch(found.peaks, usable_bytes(device))
    if most is not None:
        return batch <= most
    peak, usable = max((peak or 0) for peak in found.peaks.values()), usable_bytes(device)
    # Memory has not grown with the batch so far: assume the worst, that all of it grows in proportion.
    return usable is None or peak * batch / max(found.peaks) < HEADROOM * usable


def _is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "allocate memory" in str(error)
