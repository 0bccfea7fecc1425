"""Time and memory of a training step against the local batch.

Phases: **climb** (each batch in turn, small to large, until throughput saturates, a step takes too long or memory
ends; warms everything up and reads the memory), then **rounds**: the batches take turns, up and down again, so that a
busy machine disturbs all alike. In its turn a batch makes one step that is not counted, then blocks of steps. The
medians over all blocks count.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from rueda.measure.clock import STAGES, StageClock, wait_for, with_clock
from rueda.measure.memory import HEADROOM, largest_batch, peak_bytes, reset_peak, usable_bytes
from rueda.records import Recipe
from rueda.records.profile import StepTime
from rueda.records.recipe.batches import check_batches
from rueda.records.throughput import saturation
from rueda.tasks import Task
from rueda.train.regime import at_fixed_batch
from rueda.train.training import Training
from rueda.world import World

RATE = 1e-6
"""learning rate of measured steps: nothing diverges, nothing is learnt, the time is the same"""
BLOCK_SECONDS = 0.03
BEYOND_SATURATION = 2
"""how many batches the climb goes on for after the one at which throughput saturates"""
FEWEST_ROUNDS = 3


@dataclass(frozen=True)
class Block:
    """Some steps in a row: mean seconds of a step and of its stages, and the processor's, if it computes."""

    seconds: float
    stages: dict[str, float] | None
    processor: float | None = None


class Stepper:
    """One training that makes real updates, at any local batch: those of ``rueda train``, without its rate."""

    def __init__(self, task: Task, recipe: Recipe, world: World) -> None:
        self.clock = StageClock(world.device)
        recipe = at_fixed_batch(recipe, recipe.batch).change(workers=world.size)
        self.training = Training(with_clock(task, self.clock), recipe, world)
        self.device = world.device
        self.num_examples = self.training.loader.num_examples

    def check(self, batches: Sequence[int]) -> None:
        """Refuse a batch that the data cannot fill."""
        check_batches(batches, self.num_examples // self.training.world.size)

    def block(self, batch: int, num_steps: int, *, stages: bool) -> Block:
        """Make some steps at a local batch; with ``stages`` the clock runs."""
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


def blocks_of(stepper: Stepper, batch: int, seconds: float, estimate: float) -> list[Block]:
    """Make blocks of steps for about so long, at least one; on a GPU every other one shows the stages."""
    length = max(1, round(BLOCK_SECONDS / estimate))
    count = max(1, round(seconds / (length * estimate)))
    if stepper.device.type == "cpu":  # marks cost nothing here: each block serves for both
        return [stepper.block(batch, length, stages=True) for _ in range(count)]
    return [stepper.block(batch, length, stages=bool(number % 2)) for number in range(max(2, count))]


def summary(batch: int, blocks: Sequence[Block], peak: int | None = None) -> StepTime:
    """Make medians of blocks.

    >>> stages = {"data": 0.1, "forward": 0.3, "backward": 0.5, "optimizer": 0.1}
    >>> summary(8, [Block(seconds, stages) for seconds in (1.0, 1.2, 9.0)]).seconds
    1.2
    """
    whole = [block.seconds for block in blocks if block.stages is None] or [block.seconds for block in blocks]
    staged = [block.stages for block in blocks if block.stages is not None]
    quartiles = statistics.quantiles(whole, n=4) if len(whole) > 1 else [whole[0]] * 3
    processor = [block.processor for block in blocks if block.processor is not None]
    parts = {name: statistics.median(stages[name] for stages in staged) if staged else 0.0 for name in STAGES}
    return StepTime(
        batch=batch, seconds=statistics.median(whole), spread=(quartiles[2] - quartiles[0]) / 2, repeats=len(whole),
        peak_memory_bytes=peak, processor=statistics.median(processor) if processor else None, **parts,
    )  # fmt: skip


@dataclass
class Climb:
    """What the first pass found: a rough time and the peak memory of each batch."""

    estimates: dict[int, float] = field(default_factory=dict)
    peaks: dict[int, int | None] = field(default_factory=dict)
    full: int | None = None
    """the first batch that did not fit"""


def default_batches(num_examples: int, recipe_batch: int, *, quick: bool) -> list[int]:
    """Choose batches to climb: powers of two (of four, if quick), the recipe's own among them.

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


def climb(
    stepper: Stepper, batches: Sequence[int], *, longest: float, all_of_them: bool, seconds: float = math.inf
) -> Climb:
    """Make a few steps at each batch, small to large.

    Args:
        stepper: makes the steps.
        batches: to try.
        longest: a batch whose step takes more seconds is the last.
        all_of_them: do not stop where throughput saturates or a step takes long.
        seconds: for the whole climb; then the batch at hand is the last.
    """
    found, started = Climb(), time.perf_counter()
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
            _let_go(stepper)
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
    """Say whether to go on: for the given seconds, and a little longer if the rounds are too few.

    >>> more_rounds(9, 4.0, seconds=5.0), more_rounds(2, 6.0, seconds=5.0), more_rounds(2, 11.0, seconds=5.0)
    (True, True, False)
    """
    return passed < seconds or (done < FEWEST_ROUNDS and passed < 2 * seconds)


def measure_steps(
    stepper: Stepper,
    batches: Sequence[int],
    *,
    seconds: float,
    longest: float = 5.0,
    all_of_them: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> tuple[list[StepTime], int | None]:
    """Measure steps at local batches, and the largest batch that fits.

    Args:
        stepper: makes the steps.
        batches: candidates, small to large.
        seconds: for the rounds, all batches together.
        longest: seconds of a step after which no larger batch is tried.
        all_of_them: the caller chose the batches: try each one that fits.
        tell: is told what is being done.
    """
    stepper.check(batches)
    tell("step time: trying batches")
    first = climb(stepper, batches, longest=longest, all_of_them=all_of_them, seconds=seconds)
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
    if first.full is not None and stepper.device.type == "cuda":
        return found, max(blocks)
    return found, largest_batch(found, usable_bytes(stepper.device))


def _would_fit(found: Climb, batch: int, device: torch.device) -> bool:
    """Say whether a batch may be tried: a GPU refuses what does not fit, a CPU machine kills."""
    if device.type == "cuda" or not found.estimates:
        return True
    tried = [replace(_EMPTY, batch=each, peak_memory_bytes=peak) for each, peak in found.peaks.items()]
    most = largest_batch(tried, usable_bytes(device))
    if most is not None:
        return batch <= most
    peak, usable = max((peak or 0) for peak in found.peaks.values()), usable_bytes(device)
    # Without a line: the whole peak might grow with the batch.
    return usable is None or peak * batch / max(found.peaks) < HEADROOM * usable


_EMPTY = StepTime(batch=1, seconds=1.0, spread=0.0, repeats=1, data=0.0, forward=0.0, backward=0.0, optimizer=0.0)


def _is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "allocate memory" in str(error)


def _let_go(stepper: Stepper) -> None:
    stepper.training.optimizer.zero_grad(set_to_none=True)
    if stepper.device.type == "cuda":
        torch.cuda.empty_cache()
