"""What safety costs a training step: the finite test, signals, the stall watcher, comparisons and checkpoints.

Two workers of one job train a small CNN, and an MLP of 4.2 million parameters. Blocks of steps run in turns, with and
without each of them, in the same processes: what disturbs the machine disturbs all alike. The figure is the median
over rounds of a block's time over that of the block with nothing in the same round; wanted is at most 1.01 for all
together. The processor's time of rank 0 (all threads) is compared as well: it shows the work that safety adds where
other programs disturb the clock on the wall.

What does not happen at every step is stated apart. A comparison of the workers (a checksum of all parameters, and their
speed) is timed by itself and divided by the time of the 100 updates after which it is made; wanted is at most 0.01. A
checkpoint that a thread writes is made once in a block: the block's excess is what it costs, copy, comparison and the
writer's share of the cores included; it is stated in seconds, and as a share of a minute, in which one is made. How
long the loop stands still for it is timed with a state of 100 MB, against a checkpoint that the loop waits for; wanted
is at most a tenth. Last, a worker is killed: until survivors make the next step it takes at most half as long as until
torchrun has started all anew (:mod:`_lost_worker`).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from rich.console import Console
from torch import nn

import _lost_worker
from _common import answer_of, ratio, save
from loop import cnn, images
from plan import mlp

BATCH = 64
CLOCKS = ("wall", "processor")
WANTED = 1.01
WANTED_SHARE = 0.01
WANTED_STALL = 0.1
COMPARED_EVERY = 100
CHECKPOINT_SECONDS = 60.0
NOTHING, ALL, CHECKPOINT = "nothing", "all", "asynchronous checkpoint"
STALL, ASYNCHRONOUS, WAITING = "stall", "written by a thread", "awaited"
VARIANTS = {
    NOTHING: (),
    "finite test": ("finite",),
    "signals": ("signals",),
    "stall watcher": ("watcher",),
    "clock of stragglers": ("clock",),
    ALL: ("finite", "signals", "watcher", "clock"),
    CHECKPOINT: ("checkpoint",),
}
"""what each block of steps has switched on"""


def inputs_of(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    if name == "cnn":
        return images(20 * BATCH, 3, 32)
    generator = torch.Generator().manual_seed(0)
    return torch.randn(20 * BATCH, 784, generator=generator), torch.randint(0, 10, (20 * BATCH,), generator=generator)


MODELS: dict[str, Callable[[], nn.Module]] = {"cnn": cnn, "mlp": mlp}


def measure(name: str, rounds: int, seconds: float) -> dict[str, Any]:
    """Return the seconds of a step in each variant's blocks, of both clocks, and of a comparison of the workers."""
    import rueda
    from rueda.records import Run
    from rueda.train.interruption import Interruption
    from rueda.train.recorder import Recorder
    from rueda.train.training import Training
    from rueda.world.stall import watcher
    from rueda.world.stall.limits import read_limits

    world = rueda.init(seed=0)
    arrays = rueda.Arrays(*inputs_of(name))
    task = rueda.Task(name="safety", model=MODELS[name], train=arrays, test=arrays)
    recipe = rueda.Recipe(workers=world.size, batch=BATCH, rate=1e-4, compare_every=COMPARED_EVERY)
    training = Training(task, recipe, world)
    folder = tempfile.TemporaryDirectory()
    recorder = Recorder(training, Run(Path(world.broadcast_object(folder.name), "run")))
    clock = recorder.comparison.clock
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
            if "checkpoint" in parts:
                recorder.save()
            for _ in range(num_steps):
                begun = time.perf_counter()
                training.step(timer=clock if "clock" in parts else None)
                if "signals" in parts:
                    interruption.agreed(time.perf_counter() - begun)
            if "checkpoint" in parts and recorder._saver is not None:
                recorder._saver.finish()
            world.barrier()
            return (time.perf_counter() - started) / num_steps, (time.process_time() - worked) / num_steps

    def compare() -> tuple[float, float]:
        training.step()  # the workers are compared once after an update
        world.barrier()
        started, worked = time.perf_counter(), time.process_time()
        recorder.comparison.compare()
        return time.perf_counter() - started, time.process_time() - worked

    block((), 20)
    block(("checkpoint",), 5)
    num_steps = max(5, round(seconds / world.broadcast_object(block((), 20)[0])))
    taken = {clock: {variant: list[float]() for variant in VARIANTS} for clock in CLOCKS}
    names, comparisons = list(VARIANTS), {clock: list[float]() for clock in CLOCKS}
    compare()
    for number in range(rounds):  # each round begins with another one, so that none is always the first
        first = number % len(names)
        for variant in names[first:] + names[:first]:
            for one, value in zip(CLOCKS, block(VARIANTS[variant], num_steps), strict=True):
                taken[one][variant].append(value)
        for one, value in zip(CLOCKS, compare(), strict=True):
            comparisons[one].append(value)
    recorder.close()
    rueda.finish()
    return {"blocks": taken, "num_steps": num_steps, "comparison": comparisons}


def measure_stall(rounds: int) -> dict[str, Any]:
    """Return the seconds for which the loop stands still for a checkpoint of 100 MB, written by a thread or awaited."""
    import rueda
    from rueda.records import Run
    from rueda.train.recorder import Recorder
    from rueda.train.training import Training

    world = rueda.init(seed=0)
    arrays = rueda.Arrays(*inputs_of("mlp"))
    task = rueda.Task(name="stall", model=large, train=arrays, test=arrays)
    taken: dict[str, list[float]] = {ASYNCHRONOUS: [], WAITING: []}
    folder = tempfile.TemporaryDirectory()
    base = Path(world.broadcast_object(folder.name))
    recorders = {}
    for name in taken:
        recipe = rueda.Recipe(
            workers=world.size, batch=BATCH, rate=1e-4, optimizer="adam", asynchronous_checkpoints=name == ASYNCHRONOUS
        )
        recorders[name] = Recorder(Training(task, recipe, world), Run(base / name))
    for number in range(3 + rounds):  # the first ones make the memory of the copies
        for name, recorder in recorders.items():
            recorder.training.step()
            world.barrier()
            started = time.perf_counter()
            recorder.save()
            world.barrier()  # rank 0 writes, and both stand still until all go on
            if number >= 3:
                taken[name].append(time.perf_counter() - started)
            assert recorder._saver is not None
            recorder._saver.finish()
    size = max(file.stat().st_size for file in base.rglob("*.pt")) if world.is_main else 0
    rueda.finish()
    return {"seconds": taken, "bytes": size}


def rare(answer: dict[str, Any], blocks: dict[str, list[float]], clock: str) -> dict[str, dict[str, float]]:
    """Return the seconds of a comparison and of a checkpoint, and their shares of the time between two of them."""
    compared = statistics.median(answer["comparison"][clock])
    pairs = zip(blocks[CHECKPOINT], blocks[NOTHING], strict=True)
    saved = answer["num_steps"] * statistics.median(one - other for one, other in pairs)
    between = {"comparison": COMPARED_EVERY * statistics.median(blocks[NOTHING]), CHECKPOINT: CHECKPOINT_SECONDS}
    return {
        what: {"seconds": seconds, "ratio": round(seconds / between[what], 5), "wanted": WANTED_SHARE}
        for what, seconds in (("comparison", compared), (CHECKPOINT, saved))
    }


def large() -> nn.Module:
    """8.4 million parameters: 100 MB with Adam's two moments."""
    return nn.Sequential(nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 3296), nn.ReLU(), nn.Linear(3296, 10))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", choices=[*MODELS, STALL], help="one model, for the processes of this benchmark")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a block of steps")
    options = parser.parse_args()
    if options.measure == STALL:
        print(json.dumps(measure_stall(options.rounds)))
        return
    if options.measure:
        print(json.dumps(measure(options.measure, options.rounds, options.seconds)))
        return
    console, result = Console(), dict[str, Any]()
    for name in MODELS:
        words = [__file__, "--measure", name, "--rounds", str(options.rounds), "--seconds", str(options.seconds)]
        answer: dict[str, Any] = answer_of(words, 2)
        taken: dict[str, dict[str, list[float]]] = answer["blocks"]
        result[name] = {"seconds_per_step": statistics.median(taken["wall"][NOTHING]), "ratios": {}, **answer}
        told = f"{name}, 2 workers, {1000 * result[name]['seconds_per_step']:.2f} ms a step"
        for clock, variant in product(CLOCKS, [one for one in VARIANTS if one not in (NOTHING, CHECKPOINT)]):
            value = ratio(taken[clock], variant, NOTHING)
            result[name]["ratios"][f"{variant}, {clock}"] = {"ratio": round(value, 4), "wanted": WANTED}
            console.print(f"{told}: {variant}, {clock} {value:.4f} (wanted {WANTED})")
        for clock in CLOCKS:
            shares = rare(answer, taken[clock], clock)
            result[name]["ratios"] |= {f"{what}, {clock}": share for what, share in shares.items()}
            for what, share in shares.items():
                seconds, ratio_of = 1000 * share["seconds"], share["ratio"]
                console.print(f"{told}: {what}, {clock} {seconds:.2f} ms, {ratio_of:.4f} (wanted {share['wanted']})")
    stalled: dict[str, Any] = answer_of([__file__, "--measure", STALL, "--rounds", str(options.rounds)], 2)
    value = ratio(stalled["seconds"], ASYNCHRONOUS, WAITING)
    result[STALL] = {**stalled, "ratio": round(value, 4), "wanted": WANTED_STALL}
    each = {name: 1000 * statistics.median(seconds) for name, seconds in stalled["seconds"].items()}
    console.print(
        f"a state of {stalled['bytes'] / 1e6:.0f} MB, 2 workers: the loop stands still {each[ASYNCHRONOUS]:.1f} ms, "
        f"{each[WAITING]:.1f} ms if it waits for the file, {value:.3f} (wanted {WANTED_STALL})"
    )
    result["lost worker"] = _lost_worker.compare(3)
    save("safety", {"rounds": options.rounds, "seconds_per_block": options.seconds, **result}, seeds=(0,))


if __name__ == "__main__":
    main()
