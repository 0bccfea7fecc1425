"""What a rehearsal costs: 8 virtual workers against plain training at the same global batch; and 1,024 of them.

    python benchmarks/rehearsal.py [--repeats 7]

A small CNN on 28 x 28 images, SGD with momentum, one thread. Speed: real updates at global batch 4,096, loader
included, the two taking turns; processor time, so that others on the machine do not count. The bar: at least 0.9 times
the images/s of plain training. Memory: 1,024 virtual workers at global batch 32,768, two updates in a process of its
own; the bar: a peak within 8 GiB.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time

import torch
from rich.console import Console
from rich.table import Table

from _common import compare, ratio, save
from rueda import Arrays, Task
from rueda.records import Recipe
from rueda.tasks.models import small_cnn
from rueda.train.training import Training
from rueda.world import init

WORKERS, GLOBAL_BATCH = 8, 4096
MANY, LARGE_BATCH = 1024, 32_768
BAR, BAR_BYTES = 0.9, 8 * 2**30


def training(workers: int, local_batch: int, num_examples: int, batch_norm: bool = False) -> Training:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (num_examples, 1, 28, 28), dtype=torch.uint8, generator=generator)
    data = Arrays(images, torch.randint(10, (num_examples,), generator=generator))
    task = Task(name="images", model=small_cnn, train=data, test=data)
    recipe = Recipe(workers=workers, batch=local_batch, rate=0.01, epochs=1, model={"batch_norm": batch_norm})
    return Training(task, recipe, init(), rehearse=workers > 1)


def update(made: Training) -> None:
    """Make one update: the next batch, forward, backward, optimizer."""
    made.step(rate=0.01)


def peak_bytes() -> int:
    """Rehearse many workers in a process of its own and give its peak memory."""
    done = subprocess.run([sys.executable, __file__, "--memory"], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return int(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--memory", action="store_true", help="print the peak memory of 1,024 workers, in bytes")
    options = parser.parse_args()
    if options.memory:
        many = training(MANY, LARGE_BATCH // MANY, 2 * LARGE_BATCH, batch_norm=True)
        update(many)
        update(many)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024))
        return
    init()
    torch.set_num_threads(1)
    table = Table("model", "training", "images/s, median", "against plain")
    ratios, speeds = {}, {}
    for name, batch_norm in (("small CNN", False), ("with batch norm", True)):
        plain = training(1, GLOBAL_BATCH, 2 * GLOBAL_BATCH, batch_norm)
        virtual = training(WORKERS, GLOBAL_BATCH // WORKERS, 2 * GLOBAL_BATCH, batch_norm)
        candidates = {"plain": lambda one=plain: update(one), "rehearsed": lambda one=virtual: update(one)}
        seconds = compare(candidates, options.repeats, warmup=1, clock=time.process_time)
        ratios[name] = round(ratio(seconds, "plain", "rehearsed"), 3)
        speeds[name] = {kind: round(GLOBAL_BATCH / statistics.median(times)) for kind, times in seconds.items()}
        table.add_row(name, "plain, batch 4,096", f"{speeds[name]['plain']:,}", "1.000")
        table.add_row(name, "8 virtual workers", f"{speeds[name]['rehearsed']:,}", f"{ratios[name]:.3f}")
    peak = peak_bytes()
    Console().print(table)
    print(f"1,024 virtual workers at global batch 32,768: peak memory {peak / 2**30:.2f} GiB (bar 8)")
    save(
        "rehearsal",
        {
            "global_batch": GLOBAL_BATCH, "workers": WORKERS, "repeats": options.repeats, "bar": BAR, "ratio": ratios,
            "images_per_second": speeds, "many_workers": MANY, "large_batch": LARGE_BATCH, "peak_bytes": peak,
            "bar_bytes": BAR_BYTES,
        },
        seeds=(0,),
    )  # fmt: skip
    print(f"rehearsing 8 workers runs at {ratios['small CNN']:.3f}x the images/s of plain training (bar {BAR})")


if __name__ == "__main__":
    main()
