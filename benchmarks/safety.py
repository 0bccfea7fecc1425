"""What safety costs a training step: the finite test, the comparison of signals, and the stall watcher.

Two workers of one job train a small CNN, and an MLP of 4.2 million parameters. Blocks of steps run in turns, with and
without each of the three, in the same processes: what disturbs the machine disturbs all alike. The figure is the median
over rounds of a block's time over that of the block with nothing in the same round; wanted is at most 1.01 for all
three together. The processor's time of rank 0 (all threads) is compared as well: it shows the work that safety adds
where other programs disturb the clock on the wall.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import product
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from rich.console import Console
from torch import nn

from _common import answer_of, ratio, save
from loop import cnn, images
from plan import mlp

BATCH = 64
CLOCKS = ("wall", "processor")
WANTED = 1.01
NOTHING, ALL = "nothing", "all"
VARIANTS = {
    NOTHING: (),
    "finite test": ("finite",),
    "signals": ("signals",),
    "stall watcher": ("watcher",),
    ALL: ("finite", "signals", "watcher"),
}
"""what each block of steps has switched on"""


def inputs_of(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    if name == "cnn":
        return images(20 * BATCH, 3, 32)
    generator = torch.Generator().manual_seed(0)
    return torch.randn(20 * BATCH, 784, generator=generator), torch.randint(0, 10, (20 * BATCH,), generator=generator)


MODELS: dict[str, Callable[[], nn.Module]] = {"cnn": cnn, "mlp": mlp}


def measure(name: str, rounds: int, seconds: float) -> dict[str, dict[str, list[float]]]:
    """Return the seconds of a step in each variant's blocks, of both clocks, in this worker's process."""
    import rueda
    from rueda.train.interruption import Interruption
    from rueda.train.training import Training
    from rueda.world.stall import watcher
    from rueda.world.stall.limits import read_limits

    world = rueda.init(seed=0)
    arrays = rueda.Arrays(*inputs_of(name))
    task = rueda.Task(name="safety", model=MODELS[name], train=arrays, test=arrays)
    training = Training(task, rueda.Recipe(workers=world.size, batch=BATCH, rate=1e-4), world)
    interruption = Interruption(world)
    finite = training.updater._finite

    def untested(norm: torch.Tensor | None = None) -> bool:
        return True

    def block(parts: tuple[str, ...], num_steps: int) -> tuple[float, float]:
        watcher.stop()
        with ExitStack() as stack:
            if "watcher" in parts:
                store = dist.distributed_c10d._get_default_store()
                watcher.start(store, world.rank, world.size, local=True, limits=read_limits(os.environ))
                time.sleep(0.05)  # its threads have begun
            if "finite" not in parts:
                stack.enter_context(mock.patch.object(finite, "check", untested))
            world.barrier()
            started, worked = time.perf_counter(), time.process_time()
            for _ in range(num_steps):
                begun = time.perf_counter()
                training.step()
                if "signals" in parts:
                    interruption.agreed(time.perf_counter() - begun)
            world.barrier()
            return (time.perf_counter() - started) / num_steps, (time.process_time() - worked) / num_steps

    block((), 20)
    num_steps = max(5, round(seconds / world.broadcast_object(block((), 20)[0])))
    taken = {clock: {variant: list[float]() for variant in VARIANTS} for clock in CLOCKS}
    names = list(VARIANTS)
    for number in range(rounds):  # each round begins with another one, so that none is always the first
        first = number % len(names)
        for variant in names[first:] + names[:first]:
            for clock, value in zip(CLOCKS, block(VARIANTS[variant], num_steps), strict=True):
                taken[clock][variant].append(value)
    rueda.finish()
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", choices=MODELS, help="one model, for the processes of this benchmark")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a block of steps")
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options.rounds, options.seconds)))
        return
    console, result = Console(), dict[str, Any]()
    for name in MODELS:
        words = [__file__, "--measure", name, "--rounds", str(options.rounds), "--seconds", str(options.seconds)]
        taken: dict[str, dict[str, list[float]]] = answer_of(words, 2)
        result[name] = {"seconds_per_step": statistics.median(taken["wall"][NOTHING]), "ratios": {}, "blocks": taken}
        for clock, variant in product(CLOCKS, [variant for variant in VARIANTS if variant != NOTHING]):
            value = ratio(taken[clock], variant, NOTHING)
            result[name]["ratios"][f"{variant}, {clock}"] = {"ratio": round(value, 4), "wanted": WANTED}
            step = 1000 * result[name]["seconds_per_step"]
            console.print(f"{name}, 2 workers, {step:.2f} ms a step: {variant}, {clock} {value:.4f} (wanted {WANTED})")
    save("safety", {"rounds": options.rounds, "seconds_per_block": options.seconds, **result}, seeds=(0,))


if __name__ == "__main__":
    main()
