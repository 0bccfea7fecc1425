"""A loss surface of the small CNN on 1,024 images: rueda.examine against the package loss-landscapes.

    python benchmarks/landscape.py [--repeats 3]

The peer (loss-landscapes 3.0.6, ``pip install --no-deps loss-landscapes``) runs as its user would start it: its
``random_plane`` with filter normalisation and its ``Loss`` metric on all images at once, torch's own number of
threads; and once more with one thread. Ours is ``surface`` on 1 worker of one thread, and on 2. Each is a process of
its own (2 for the latter), started anew in every round, in turns; timed is the surface alone, without the start of
Python. A point costs the same wherever it lies, so few are timed and 51 x 51 follow from them.

Two clocks: the wall's, which others on the machine disturb, and the processor's (of the busier worker where there are
two), which they do not; for the peer on several threads the latter adds up its threads and is not used. The bars: 4
times as fast on 1 worker, and 1.7 times more on 2, by either clock. `rueda examine` takes all cores by itself where the
work is long; its 1 worker is one thread, so the peer on two threads is compared with 2 workers, and with 1. The numbers
of 1 and 2 workers must be equal to the last bit, and the loss at the model must be the peer's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from _common import save
from rueda.tasks.models import small_cnn

NUM_IMAGES = 1024
NAMES = ("loss-landscapes", "loss-landscapes, one thread", "1 worker", "2 workers")
BAR, BAR_WORKERS = 4.0, 1.7


def subject() -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = small_cnn()
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(NUM_IMAGES, 1, 28, 28, generator=generator)
    return model, images, torch.randint(10, (NUM_IMAGES,), generator=generator)


def peer(side: int, threads: int | None = None) -> dict[str, Any]:
    import loss_landscapes
    from loss_landscapes.metrics import Loss

    if threads is not None:
        torch.set_num_threads(threads)
    model, images, labels = subject()
    metric = Loss(torch.nn.functional.cross_entropy, images, labels)
    centre = float(metric(loss_landscapes.model_interface.model_wrapper.wrap_model(model)))
    began, began_cpu = time.perf_counter(), time.process_time()
    loss_landscapes.random_plane(model, metric, distance=1, steps=side, normalization="filter")
    wall, processor = time.perf_counter() - began, time.process_time() - began_cpu
    return {
        "wall": wall / side**2, "processor": processor / side**2, "centre": centre,
        "threads": torch.get_num_threads(),
    }  # fmt: skip


def ours(side: int) -> dict[str, Any]:
    from rueda.examine import Objective, surface
    from rueda.examine.landscape.grid import axis
    from rueda.tasks.task import accuracy, cross_entropy
    from rueda.world import finish, init

    world = init()
    model, images, labels = subject()
    objective = Objective(model, cross_entropy, images, labels, correct=accuracy)
    steps = axis(-1.0, 1.0, side)
    objective.values()
    world.barrier()
    began, began_cpu = time.perf_counter(), time.process_time()
    found = surface({"train": objective}, x=steps, y=steps)
    wall, processor = time.perf_counter() - began, time.process_time() - began_cpu
    busiest = max(world.all_gather_object(processor))
    loss = found.sheets[0].loss
    answer = {
        "wall": wall / side**2, "processor": busiest / side**2, "centre": found.centre(loss), "loss": loss
    }  # fmt: skip
    is_main = world.is_main
    finish()
    return answer if is_main else {}


def run(part: str, side: int, workers: int = 1) -> dict[str, Any]:
    """Run a part in a process of its own, or in several, and give what it wrote."""
    with TemporaryDirectory() as scratch:
        file = Path(scratch, "answer.json")
        command = [sys.executable, __file__, "--part", part, "--side", str(side), "--answer", str(file)]
        environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        if workers > 1:
            command = [sys.executable, "-m", "rueda", "run", "-np", str(workers), *command]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(done.stderr or done.stdout)
        answer: dict[str, Any] = json.loads(file.read_text())
        return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peer-side", type=int, default=4, help="points of each axis that the peer computes")
    parser.add_argument("--side", type=int, default=11, help="points of each axis that ours computes")
    parser.add_argument("--part", choices=["peer", "peer-on-one-thread", "ours"])
    parser.add_argument("--answer", type=Path)
    options = parser.parse_args()
    if options.part is not None:
        answer = (
            ours(options.side) if options.part == "ours" else peer(options.side, None if options.part == "peer" else 1)
        )
        if answer:
            options.answer.write_text(json.dumps(answer))
        return
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in NAMES}
    for _ in range(options.repeats):
        for name, part, side, workers in zip(
            NAMES, ("peer", "peer-on-one-thread", "ours", "ours"), (*[options.peer_side] * 2, *[options.side] * 2),
            (1, 1, 1, 2), strict=True,
        ):  # fmt: skip
            answer = run(part, side, workers)
            rounds[name].append(answer)
            print(
                f"{name}: {1e3 * answer['wall']:.1f} ms a point, processor {1e3 * answer['processor']:.1f}", flush=True
            )
        conclude(rounds, (options.peer_side**2, options.side**2))  # after each round: a stopped benchmark has a result


def conclude(rounds: dict[str, list[dict[str, Any]]], points: tuple[int, int]) -> None:
    """Compare, print and save what the rounds so far gave."""
    one, theirs = rounds["1 worker"][0], rounds["loss-landscapes"][0]
    equal = all(found["loss"] == one["loss"] for found in (*rounds["1 worker"], *rounds["2 workers"]))
    if not equal or abs(one["centre"] - theirs["centre"]) > 1e-5:
        raise SystemExit(f"the values differ: equal on 1 and 2 workers: {equal}; {one['centre']}, {theirs['centre']}")

    def ratio(slow: str, fast: str, clock: str) -> float:
        pairs = zip(rounds[slow], rounds[fast], strict=True)
        return float(round(statistics.median(a[clock] / b[clock] for a, b in pairs), 2))

    ratios = {
        "all cores each, as a user starts them, wall": ratio("loss-landscapes", "2 workers", "wall"),
        "1 worker against all its threads, wall": ratio("loss-landscapes", "1 worker", "wall"),
        "on one thread each, processor": ratio("loss-landscapes, one thread", "1 worker", "processor"),
        "2 workers against 1, wall": ratio("1 worker", "2 workers", "wall"),
        "2 workers against 1, processor": ratio("1 worker", "2 workers", "processor"),
    }
    table = Table("surface of the small CNN, 1,024 images", "ms a point, wall", "processor", "51 x 51 points, wall")
    medians = {
        name: {clock: statistics.median(found[clock] for found in answers) for clock in ("wall", "processor")}
        for name, answers in rounds.items()
    }
    for name, found in medians.items():
        table.add_row(
            name, f"{1e3 * found['wall']:.1f}", f"{1e3 * found['processor']:.1f}", f"{2601 * found['wall']:,.0f} s"
        )
    Console().print(table)
    save(
        "landscape",
        {
            "num_images": NUM_IMAGES, "repeats": len(rounds[NAMES[0]]), "peer_points": points[0], "points": points[1],
            "peer_threads": theirs["threads"], "median_seconds_a_point": medians, "ratio": ratios, "bar": BAR,
            "bar_of_2_workers": BAR_WORKERS, "equal_numbers": equal,
        },
        seeds=(0, 1),
    )  # fmt: skip
    for name, value in ratios.items():
        print(f"{name}: {value:.2f}x (bar {BAR_WORKERS if name.startswith('2 workers') else BAR:g})")


if __name__ == "__main__":
    main()
