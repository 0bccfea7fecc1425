"""Measure how much workers on one machine slow each other down, and how much of the all-reduce the backward pass hides.

At each batch all workers make two kinds of steps in turn: *apart*, in which each worker computes without communication,
and *joined*, in which gradients are averaged as in training. The first kind shows the cost of shared memory bandwidth,
caches and cores; both together determine the exchange and its overlap (:func:`rueda.measure.fit.fit_overlap`).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from rueda.data.nest import num_bytes
from rueda.measure.communication import slowest
from rueda.measure.fit import fit_overlap
from rueda.measure.steps import BLOCK_SECONDS, FEWEST_ROUNDS, Block, Stepper, more_rounds, summary
from rueda.records import Recipe
from rueda.records.profile import Communication, Together
from rueda.tasks import Task
from rueda.world import World

_FIRST_BUCKET_BYTES, _BUCKET_BYTES = 1 << 20, 25 << 20
"""bucket sizes of torch's DistributedDataParallel"""


def num_buckets(gradient_bytes: int) -> int:
    """Return the number of buckets into which DistributedDataParallel splits gradients: 1 MB, then 25 MB each.

    >>> num_buckets(400_000), num_buckets(17_000_000), num_buckets(100_000_000)
    (1, 2, 5)
    """
    rest = max(0, gradient_bytes - _FIRST_BUCKET_BYTES)
    return 1 + -(-rest // _BUCKET_BYTES)


def measure_together(
    task: Task, recipe: Recipe, world: World, batches: Sequence[int], link: Communication, *, seconds: float
) -> Together:
    """Measure steps of all workers at once; every worker must call this, and every worker gets the result.

    Args:
        task: the task, with its data in memory.
        recipe: the recipe of one worker.
        world: the workers, two or more.
        batches: the local batches to measure.
        link: the measured all-reduce among these workers, the initial guess of the exchange.
        seconds: approximate duration of the measurement.
    """
    apart, joined = Stepper(task, recipe, World(device=world.device)), Stepper(task, recipe, world)
    batches = [batch for batch in sorted(batches) if batch <= joined.num_examples // world.size]
    joined.check(batches)
    kinds = {"apart": apart, "joined": joined}
    stages = world.device.type == "cpu"  # on a GPU timing the stages would prevent their overlap
    estimates: dict[tuple[str, int], float] = {}
    for batch in batches:
        for name, stepper in kinds.items():
            world.barrier()
            stepper.block(batch, 2, stages=stages)
            estimates[name, batch] = slowest(world, stepper.block(batch, 1, stages=stages).seconds)
    blocks: dict[tuple[str, int], list[Block]] = {key: [] for key in estimates}
    share = seconds / (2 * FEWEST_ROUNDS) / len(blocks)
    started, number, order = time.perf_counter(), 0, list(blocks)
    while number == 0 or more_rounds(number, slowest(world, time.perf_counter() - started), seconds):
        for key in order:
            name, batch = key
            length = max(1, round(BLOCK_SECONDS / estimates[key]))
            count = max(1, round(share / (length * estimates[key])))
            world.barrier()  # all workers must compute at the same time
            kinds[name].block(batch, 1, stages=stages)
            blocks[key] += [kinds[name].block(batch, length, stages=stages) for _ in range(count)]
        order.reverse()
        number += 1
    everybody = world.all_gather_object(blocks)
    compute = [summary(batch, _mean([each["apart", batch] for each in everybody])) for batch in batches]
    steps = [summary(batch, _mean([each["joined", batch] for each in everybody])) for batch in batches]
    found = Together(
        workers=world.size, threads=torch.get_num_threads(), compute=tuple(compute), joined=tuple(steps)
    )  # fmt: skip
    return fitted(found, link, gradient_bytes(joined.training.model))


def fitted(together: Together, link: Communication, gradient_bytes: int) -> Together:
    """Return the record with the fitted exchange and overlap; the measured all-reduce is the initial guess."""
    guess = link.seconds(gradient_bytes) + (num_buckets(gradient_bytes) - 1) * link.latency
    fit = fit_overlap([one.seconds for one in together.compute], [one.seconds for one in together.joined], guess)
    return replace(together, exchange=fit.exchange, overlap=fit.gamma, residual=fit.residual)


def _mean(blocks: Sequence[Sequence[Block]]) -> list[Block]:
    """Return each block averaged over the workers."""
    found = []
    for same in zip(*blocks, strict=True):
        stages = [block.stages for block in same if block.stages is not None]
        means = {name: statistics.mean(one[name] for one in stages) for name in stages[0]} if stages else None
        processor = [block.processor for block in same if block.processor is not None]
        seconds = statistics.mean(block.seconds for block in same)
        found.append(Block(seconds, means, statistics.mean(processor) if processor else None))
    return found


def gradient_bytes(model: nn.Module) -> int:
    """Return the bytes of the model's gradients."""
    return num_bytes([one for one in model.parameters() if one.requires_grad])
