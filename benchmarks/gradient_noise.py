"""What multiplicative gradient noise costs: a training step with it against the same step without.

    python benchmarks/gradient_noise.py [--repeats 40]

A small CNN on 28 x 28 images, batch 256, SGD with momentum, one thread, processor time. The bar: at most
1.03 times the step.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from _common import compare, ratio, save
from rueda.optim.noise import add_noise, noise_weights, weighted_mean
from rueda.world import malloc

BATCH, SIGMA = 256, 2.6


def network() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 49, 10)),
    )


def trainer(noise: str, x: Tensor, y: Tensor) -> Callable[[], None]:
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    step = 0

    def run() -> None:
        nonlocal step
        optimizer.zero_grad()
        if noise == "multiplicative":
            losses = nn.functional.cross_entropy(model(x), y, reduction="none")
            loss = weighted_mean(losses, noise_weights(len(losses), SIGMA, seed=0, step=step))
        else:
            loss = nn.functional.cross_entropy(model(x), y)
        torch.autograd.backward(loss)
        if noise == "additive":
            add_noise(model.parameters(), step=step, eta=0.01, seed=0)
        optimizer.step()
        step += 1

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=40)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    malloc.tune()  # as rueda.init does: less time in page faults makes the noise dearer, not cheaper
    x, y = torch.randn(BATCH, 1, 28, 28), torch.randint(10, (BATCH,))
    kinds = ("none", "multiplicative", "additive")
    seconds = compare({kind: trainer(kind, x, y) for kind in kinds}, repeats, warmup=5, clock=time.process_time)
    table = Table("noise", "median step, ms", "against none")
    ratios = {kind: round(ratio(seconds, kind, "none"), 4) for kind in kinds}
    for kind in kinds:
        table.add_row(kind, f"{1e3 * statistics.median(seconds[kind]):.2f}", f"{ratios[kind]:.3f}")
    Console().print(table)
    milliseconds = {kind: round(1e3 * statistics.median(seconds[kind]), 3) for kind in kinds}
    save(
        "gradient_noise",
        {"batch": BATCH, "repeats": repeats, "bar": 1.03, "milliseconds": milliseconds, "ratio": ratios},
        seeds=(0,),
    )
    print(f"a step with multiplicative noise takes {ratios['multiplicative']:.3f}x one without (bar 1.03)")


if __name__ == "__main__":
    main()
