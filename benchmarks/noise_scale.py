"""What the gradient noise scale costs: training with it logged at every update, against without.

    python benchmarks/noise_scale.py [--rounds 9] [--only NAME]

The small CNN on 28 x 28 images (that of ``fashion-mnist-cnn``), trained into a run folder, a row an update. In one
process (two for 2 workers), one thread each, stretches of updates with and without take turns, so that a noisy machine
disturbs both alike; a pair is two neighbouring stretches, and the ratio of images/s is the median over all pairs.
Processor time for one process, so that others on the machine do not count; for two, which wait for each other, the
wall clock, with the processor time of rank 0 beside it.
The bar, for workers, accumulation and rehearsal: at least 0.98 times the images/s.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.table import Table

from _common import answer_of, earlier, save

if TYPE_CHECKING:
    from rueda.train.recorder import Recorder
    from rueda.train.training import Training

BAR = 0.98
UPDATES = 16
"""of a stretch"""
NUM_EXAMPLES = 4096
CASES: dict[str, dict[str, Any]] = {
    "2 workers of 128, DDP hook": {"workers": 2, "batch": 128, "bar": True},
    "1 worker, 4 x 64 accumulated": {"batch": 64, "accumulate": 4, "bar": True},
    "8 rehearsed workers of 64": {"workers": 8, "batch": 64, "rehearse": True, "bar": True},
    "1 worker of 128, halves": {"batch": 128},
    "1 worker of 128, halves, batch norm": {"batch": 128, "model": {"batch_norm": True}},
}


def stretches(name: str, rounds: int, folder: Path) -> dict[str, list[tuple[float, float]]]:
    """Train with and without in turns; seconds of each stretch by both clocks, a pair a round (without, with)."""
    import rueda
    from rueda.records import Run
    from rueda.tasks.models import small_cnn
    from rueda.train.recorder import Recorder
    from rueda.train.training import Training

    options = dict(CASES[name])
    rehearse = bool(options.pop("rehearse", False))
    options.pop("bar", None)
    world = rueda.init(seed=0)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (NUM_EXAMPLES, 1, 28, 28), dtype=torch.uint8, generator=generator)
    data = rueda.Arrays(images, torch.randint(10, (NUM_EXAMPLES,), generator=generator))
    task = rueda.Task(name="images", model=small_cnn, train=data, test=data.subset(slice(0, 64)))
    recipe = rueda.Recipe(rate=0.01, epochs=1_000_000, **options)
    made: list[Callable[[], None]] = []
    for number, every in enumerate((None, 1)):
        job = Training(task, recipe.change(noise_scale_every=every), world, rehearse=rehearse)
        recorder = Recorder(job, Run(folder / str(number)))
        made.append(lambda job=job, recorder=recorder: train(job, recorder))  # type: ignore[misc]
    pairs: dict[str, list[tuple[float, float]]] = {"wall": [], "processor": []}
    for round_number in range(rounds + 1):
        wall, processor = [0.0, 0.0], [0.0, 0.0]
        for index in ((0, 1), (1, 0))[round_number % 2]:  # whoever comes second finds a warm cache: turn about
            world.barrier()
            started, used = time.perf_counter(), time.process_time()
            made[index]()
            wall[index], processor[index] = time.perf_counter() - started, time.process_time() - used
        if round_number > 0:  # the first warms up
            pairs["wall"].append((wall[0], wall[1]))
            pairs["processor"].append((processor[0], processor[1]))
    return pairs


def train(job: Training, recorder: Recorder) -> None:
    """Make a stretch of updates as the loop does: step, and record it."""
    for _ in range(UPDATES):
        recorder.record_step(job.step(rate=0.01))


def size_of(name: str) -> int:
    """Count the processes of a case."""
    return 1 if CASES[name].get("rehearse") else int(CASES[name].get("workers", 1))


def measure(name: str, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Run one case in processes of its own."""
    with TemporaryDirectory() as folder:
        command = [__file__, "--case", name, "--rounds", str(rounds), "--folder", folder]
        found: dict[str, list[tuple[float, float]]] | None = answer_of(command, size_of(name))
    if found is None:
        raise SystemExit(f"{name}: could not be measured")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", help="one case, by a part of its name; the others keep their results")
    parser.add_argument("--case", help="one case, for the processes of this benchmark")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(stretches(options.case, options.rounds, options.folder)))
        return
    table = Table("training", "images/s without", "with", "ratio", "quartiles", f"bar {BAR}")
    results: dict[str, Any] = {}
    for name, case in CASES.items():
        if options.only and options.only not in name:
            continue
        both = measure(name, options.rounds)
        clock = "processor" if size_of(name) == 1 else "wall"
        pairs = both[clock]
        examples = UPDATES * case.get("workers", 1) * case["batch"] * case.get("accumulate", 1)
        ratios = sorted(without / with_it for without, with_it in pairs)
        low, middle, high = statistics.quantiles(ratios, n=4)
        speeds = [round(examples / statistics.median(times)) for times in zip(*pairs, strict=True)]
        results[name] = {
            "ratio": round(middle, 4), "quartiles": [round(low, 4), round(high, 4)],
            "clock": clock, "rounds": options.rounds, "bar": BAR if case.get("bar") else None,
            "ratio_of_processor_time": round(statistics.median(a / b for a, b in both["processor"]), 4),
            "images_per_second": {"without": speeds[0], "with": speeds[1]}, "pairs": pairs,
        }  # fmt: skip
        told = "" if not case.get("bar") else "kept" if middle >= BAR else "missed"
        print(f"{name}: {middle:.3f} ({clock}); {results[name]['ratio_of_processor_time']:.3f} (processor)", flush=True)
        table.add_row(name, f"{speeds[0]:,}", f"{speeds[1]:,}", f"{middle:.3f}", f"{low:.3f} to {high:.3f}", told)
    Console().print(table)
    before = earlier("noise_scale").get("cases", {}) if options.only else {}
    save("noise_scale", {"updates": UPDATES, "cases": {**before, **results}}, seeds=(0,))


if __name__ == "__main__":
    main()
