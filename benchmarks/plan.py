"""What a plan predicts against what happens, on this machine, in one run.

For each task: steps of 1 worker and of 2 are measured at some batches (`rueda.measure.measure`), all in turns, so
that a noisy machine disturbs all alike. Some batches are then held out: a profile that has not seen them predicts their
images/s (`rueda.plan.predict`), which is compared with what was measured. The median over the repeats of the ratio
predicted / measured counts. Wanted: within 10 %.

The second task is an MLP of 4.2 million parameters at batch 64: so much to exchange, so little to compute, that 2
workers are slower than one. The plan must say so without having seen that batch.

With `--train` real trainings (the loop of `rueda train`, in processes of their own) follow each prediction as well.
They are minutes apart from it: only a quiet machine gives them a meaning.

    python benchmarks/plan.py --repeats 2

This file defines `task` too, the MLP: the workers load it from here.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

import rueda
from _common import earlier, save
from rueda.records.profile import Profile, StepTime

NUM_EXAMPLES = 4096
MLP_BATCH = 64
BUDGET: dict[str, Any] = {
    "steps": 8.0, "communication": 2.0, "together": 16.0, "noise": 0.0, "longest_step": 2.0,
    "sizes": (4, 1 << 12, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24),
}  # fmt: skip


def mlp() -> nn.Module:
    """4.2 million parameters, 17 MB of gradients."""
    return nn.Sequential(
        nn.Linear(784, 1568), nn.ReLU(), nn.Linear(1568, 1568), nn.ReLU(), nn.Linear(1568, 320), nn.ReLU(),
        nn.Linear(320, 10),
    )  # fmt: skip


def points() -> rueda.Arrays:
    """Something to train on."""
    draws = torch.Generator().manual_seed(0)
    return rueda.Arrays(
        torch.randn(NUM_EXAMPLES, 784, generator=draws), torch.randint(0, 10, (NUM_EXAMPLES,), generator=draws)
    )


task = rueda.Task(name="mlp-4.2m", model=mlp, train=points, test=points, recipe=rueda.Recipe(batch=MLP_BATCH))

CASES: dict[str, dict[str, list[int]]] = {
    "glyphs-cnn": {"profile": [16, 64, 256], "held out": [32, 128]},
    __file__: {"profile": [16, 32, 128, 256], "held out": [MLP_BATCH, 192]},
}


def real_speeds(name: str, batches: list[int], seconds: float) -> dict[int, float]:
    """Train for a while at each batch, in turns, with the loop of `rueda train`; the median images/s of its epochs."""
    from rueda.records import Row
    from rueda.train.loop import run_epochs
    from rueda.train.recorder import Recorder
    from rueda.train.training import Training

    world = rueda.init()
    found = rueda.load_task(name)
    data = found.load("train")
    assert isinstance(data, rueda.Arrays)
    few = data.subset(slice(0, NUM_EXAMPLES))
    small = replace(found, train=few, test=few.subset(slice(0, 64)))
    speeds: dict[int, list[float]] = {batch: [] for batch in batches}
    epochs: dict[int, int] = {}
    for turn in range(4):
        for batch in batches:
            recipe = found.recipe.change(
                workers=world.size, batch=batch, epochs=epochs.get(batch, 2), rate=1e-6, recalibrate="never"
            )
            training = Training(small, recipe, world)
            recorder, rows = Recorder(training), list[Row]()
            recorder.append = rows.append  # type: ignore[method-assign, assignment]
            run_epochs(training, recorder)
            if turn == 0:  # says how long an epoch takes
                estimate = NUM_EXAMPLES / rows[-1].images_per_second
                agreed = world.broadcast_object(max(3, 1 + round(seconds / 3 / estimate)))
                epochs[batch] = min(60, agreed)
            else:
                speeds[batch] += [row.images_per_second for row in rows[1:]]
    return {batch: statistics.median(values) for batch, values in speeds.items()}


def measured(name: str, workers: int, batches: list[int], seconds: float) -> dict[int, float]:
    """Run :func:`real_speeds` on some workers, in processes of their own."""
    from rueda.world.launch import Host, LaunchPlan, OutputOptions, launch

    with TemporaryDirectory() as scratch:
        file = Path(scratch, "speeds.json")
        words = [sys.executable, __file__, "--real", name, "--batches", ",".join(map(str, batches))]
        words += ["--seconds", str(seconds), "--output", str(file)]
        plan = LaunchPlan(program=tuple(words), hosts=(Host(name="localhost", slots=workers),))
        status = launch(plan, output=OutputOptions(quiet_ranks=True))
        if status:
            sys.exit(status)
        return {int(batch): speed for batch, speed in json.loads(file.read_text()).items()}


def without(profile: Profile, batches: list[int]) -> Profile:
    """Give the profile as if these batches had not been measured."""
    from rueda.measure.together import fitted

    steps = tuple(step for step in profile.steps if step.batch not in batches)
    pair, link = profile.together[0], profile.communication[0]
    compute, joined = (
        tuple(step for step in kind if step.batch not in batches) for kind in (pair.compute, pair.joined)
    )
    pair = fitted(replace(pair, compute=compute, joined=joined), link, profile.gradient_bytes)
    return replace(
        profile, steps=steps, together=(pair,), overlap=pair.overlap,
        contention=pair.contention(steps),
    )  # fmt: skip


def by_processor(profile: Profile) -> Profile:
    """Give the profile in processor seconds instead of the wall clock's; right for one thread a worker."""

    def swapped(steps: tuple[StepTime, ...]) -> tuple[StepTime, ...]:
        return tuple(replace(step, seconds=step.processor or step.seconds) for step in steps)

    pairs = tuple(
        replace(pair, compute=swapped(pair.compute), joined=swapped(pair.joined)) for pair in profile.together
    )
    return replace(profile, steps=swapped(profile.steps), together=pairs)


def one_round(name: str, case: dict[str, list[int]], train_seconds: float) -> list[dict[str, Any]]:
    """Measure, hold out, predict, compare; by the wall clock and by the processor's."""
    from rueda.measure import measure
    from rueda.measure.request import Budget
    from rueda.plan import predict, this_machine

    whole = measure(name, workers=[2], batches=sorted([*case["profile"], *case["held out"]]), budget=Budget(**BUDGET))
    trained: dict[int, dict[int, float]] = {1: {}, 2: {}}
    if train_seconds:
        trained = {workers: measured(name, workers, case["held out"], train_seconds) for workers in (1, 2)}
    rows = []
    for clock, workers in itertools.product(("wall", "processor"), (1, 2)):
        full = by_processor(whole) if clock == "processor" else whole
        seen = without(full, case["held out"])
        machine, pair = this_machine(seen), seen.together[0]
        steps = full.steps if workers == 1 else full.together[0].joined
        for step in [step for step in steps if step.batch in case["held out"]]:
            found = predict(seen, machine, workers=workers, local_batch=step.batch)
            rows.append(
                {
                    "task": whole.task, "clock": clock, "workers": workers, "batch": step.batch,
                    "predicted": found.images_per_second, "measured": workers * step.images_per_second,
                    "trained": trained[workers].get(step.batch) if clock == "wall" else None,
                    "spread": step.spread / step.seconds,
                    "threads": seen.threads if workers == 1 else pair.threads, "contention": seen.contention,
                    "exchange_seconds": pair.exchange, "overlap": pair.overlap, "residual": pair.residual,
                    "latency": seen.communication[0].latency, "bandwidth": seen.communication[0].bandwidth,
                }
            )  # fmt: skip
    return rows


def main() -> None:
    """Run the rounds and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--only", default="", help="glyphs or plan: one task; the other's last rounds are kept")
    parser.add_argument("--train", action="store_true", help="let real trainings follow")
    parser.add_argument("--seconds", type=float, default=3.0, help="of real training at each batch")
    parser.add_argument("--real", help="a task, for the processes of this benchmark")
    parser.add_argument("--batches", default="")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if options.real:
        speeds = real_speeds(options.real, [int(batch) for batch in options.batches.split(",")], options.seconds)
        if rueda.init().is_main:
            options.output.write_text(json.dumps(speeds))
        return
    rounds: list[dict[str, Any]] = []
    for number in range(options.repeats):
        for name, case in [(name, case) for name, case in CASES.items() if options.only in Path(name).stem]:
            print(f"round {number + 1}: {Path(name).stem}", file=sys.stderr, flush=True)
            found = one_round(name, case, options.seconds if options.train else 0.0)
            for row in found:
                print(f"  {json.dumps(row)}", file=sys.stderr, flush=True)
            rounds += found
    if options.only:  # each task is a comparison of its own: keep the other's
        tasks = {row["task"] for row in rounds}
        rounds += [row for row in earlier("plan").get("rounds", []) if row["task"] not in tasks]
    show(rounds, options.repeats)


def show(rounds: list[dict[str, Any]], repeats: int) -> None:
    """Print and save what the rounds found."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="images/s at batches that the profile has not seen")
    headings = (
        "task",
        "clock",
        "workers",
        "batch",
        "predicted",
        "measured",
        "predicted / measured",
        "repeats",
        "trained",
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    fields = ("task", "clock", "workers", "batch")
    cases = []
    for key in dict.fromkeys(tuple(row[name] for name in fields) for row in rounds):
        rows = [row for row in rounds if tuple(row[name] for name in fields) == key]
        ratios = [row["predicted"] / row["measured"] for row in rows]
        case = {
            **dict(zip(fields, key, strict=True)),
            "predicted": statistics.median(row["predicted"] for row in rows),
            "measured": statistics.median(row["measured"] for row in rows),
            "ratio": statistics.median(ratios),
            "ratios": ratios,
        }
        cases.append(case)
        table.add_row(
            *map(str, key), f"{case['predicted']:,.0f}", f"{case['measured']:,.0f}", f"{case['ratio']:.2f}",
            " ".join(f"{ratio:.2f}" for ratio in ratios),
            " ".join(f"{row['trained']:,.0f}" for row in rows if row["trained"] is not None),
        )  # fmt: skip
    console = Console()
    console.print(table)
    result: dict[str, Any] = {
        "cases": cases, "wanted": 0.10, "repeats": repeats, "rounds": rounds,
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
    }  # fmt: skip
    for clock in ("wall", "processor"):
        worst = max(abs(case["ratio"] - 1) for case in cases if case["clock"] == clock)
        result[f"largest_error_{clock}"] = worst
        console.print(f"by the {clock} clock: largest error {100 * worst:.0f} % (wanted: 10 %)")
        said = {kind: speedup(rounds, clock, kind) for kind in ("predicted", "measured")}
        if None not in said.values():
            result[f"mlp_speedup_{clock}"] = said
            console.print(
                f"  {task.name} at batch {MLP_BATCH}, 2 workers against 1: predicted {said['predicted']:.2f}x, "
                f"measured {said['measured']:.2f}x"
            )
    save("plan", result, seeds=(0,))


def speedup(rounds: list[dict[str, Any]], clock: str, kind: str) -> float | None:
    """Give the images/s of 2 workers against 1 for the MLP."""
    one, two = (
        [
            row[kind]
            for row in rounds
            if (row["task"], row["clock"], row["workers"], row["batch"]) == (task.name, clock, workers, MLP_BATCH)
        ]
        for workers in (1, 2)
    )
    return statistics.median(b / a for a, b in zip(one, two, strict=True)) if one else None


if __name__ == "__main__":
    main()
