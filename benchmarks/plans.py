"""The panel: do planned recipes keep one worker's result on tasks that were not used to choose the planner's rules?

Eighteen small tasks of different kinds (twelve of :mod:`plan_tasks`, six of :mod:`plan_new_tasks`): tables, text,
images and sequences; classification and regression; SGD and Adam; with and without batch norm. Each is measured for its
gradient noise scale, then planned for 8 and for 64 workers, and the planned recipes are rehearsed as they are, without
search. They are compared with one worker that trains by the task's recipe with the same cooldown (a tenth of the rate
in the last fifth of the epochs), with three seeds.

A result is **kept** if the mean accuracy is at most 1 point lower, or, in regression, the mean test loss at most 2 %
higher. The difference is given with its 95 % interval (Welch); this verdict is by the mean. The last column is that of
the studies (:mod:`rueda.records.comparison`): kept or lost only if the whole 90 % interval says so, else undecided.

A step is taken to last equally long at every local batch, as on a GPU that such models do not fill. By the step times
of a CPU the plan would divide one worker's batch among the workers, which trains as one worker does and tests nothing.

Where no layer computes statistics of a worker's own batch, the mean gradient of N workers is that of one batch that is
N times as large, so one pass computes it (``--unfolded`` rehearses N workers one by one; only the order of the examples
differs). Batch norm with a worker's own statistics is always rehearsed worker by worker.

    OMP_NUM_THREADS=1 nice -n 10 python benchmarks/plans.py
    python benchmarks/plans.py --only shapes --seeds 1          one task
    python benchmarks/plans.py --development                    the tasks on which rules are chosen, not the panel's
    python benchmarks/plans.py --development --no-noise         the same, planned as if the noise scale were not known
    python benchmarks/plans.py --table                          the table of the docs, from the saved result
    python benchmarks/plans_confirm.py                          how often `rueda plan --confirm` foresees that result
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

import rueda
from _common import RESULTS, earlier, save
from plan_development import DEVELOPMENT
from plan_new_tasks import NEW
from plan_tasks import TASKS
from rueda.measure import measure
from rueda.measure.request import Budget
from rueda.plan import load_cluster, make_plan
from rueda.plan.choice import with_cooldown
from rueda.records import Recipe, Row
from rueda.records.comparison import Measured, compare
from rueda.records.metric import ACCURACY, LOSS
from rueda.records.profile import Profile, StepTime
from rueda.records.study import mean_and_spread
from rueda.records.welch import Sample, half_width
from rueda.tasks import Task
from rueda.train.loop import run_epochs
from rueda.train.recorder import Recorder
from rueda.train.training import Training
from rueda.world import World

PANEL = (*TASKS, *NEW)
WORKERS = (8, 64)
STEP_SECONDS = 0.010
BUDGET = Budget(steps=0.2, communication=0.1, together=0.1, noise=120.0, longest_step=0.3, sizes=(4, 4096))
"""the noise scale is measured for two epochs, however long they take"""
POINTS, SHARE = 0.01, 0.02
"""how much lower the accuracy, and by which fraction higher the loss, may be"""


def on_a_gpu_that_is_not_full(profile: Profile, base_batch: int) -> Profile:
    """Return the profile with the same step time at every local batch, up to four times that of one worker."""
    batches = [1 << power for power in range((4 * base_batch).bit_length())]
    steps = [
        StepTime(batch=batch, seconds=STEP_SECONDS, spread=0.0, repeats=1, data=0.0, forward=STEP_SECONDS / 3,
                 backward=2 * STEP_SECONDS / 3, optimizer=0.0)
        for batch in batches
    ]  # fmt: skip
    return replace(profile, steps=tuple(steps), largest_batch=batches[-1])


def folded(recipe: Recipe, batch_norm: bool | None) -> Recipe:
    """Return a recipe of one worker that makes the same updates, if no layer depends on a worker's own batch.

    >>> one = folded(Recipe(workers=64, batch=2, base_batch=32), batch_norm=False)
    >>> one.workers, one.batch, one.scale
    (1, 128, 4.0)
    """
    if batch_norm and not recipe.sync_batch_norm:
        return recipe
    largest = recipe.largest_local_batch and recipe.workers * recipe.largest_local_batch
    return recipe.change(
        workers=1, batch=recipe.global_batch, accumulate=1, sync_batch_norm=False, largest_local_batch=largest,
        base_batch=recipe.base_batch or recipe.local_batch,
    )  # fmt: skip


def trained(task: Task, recipe: Recipe) -> float:
    """Train, rehearsed if there are several workers; return the last test accuracy, or test loss in regression."""
    training = Training(task, recipe, World(), rehearse=recipe.workers > 1)
    recorder, rows = Recorder(training), list[Row]()
    recorder.append = rows.append  # type: ignore[method-assign, assignment]
    run_epochs(training, recorder)
    last = [row for row in rows if row.kind == "epoch"][-1]
    found = last.test_loss if task.metric is None else last.test_accuracy
    return math.nan if found is None or last.diverged else float(found)


def case_of(task: Task, seeds: Sequence[int], *, unfolded: bool = False, no_noise: bool = False) -> dict[str, Any]:
    """Measure, plan and train one task."""
    started = time.process_time()
    base = task.recipe
    profile = on_a_gpu_that_is_not_full(measure(task, workers=[1], batches=[base.batch], budget=BUDGET), base.batch)
    profile = replace(profile, noise=() if no_noise else profile.noise)
    cluster = replace(load_cluster("dgx-a100"), speed=1.0)
    one = [trained(task, with_cooldown(base).change(seed=seed)) for seed in seeds]
    case: dict[str, Any] = {
        "task": task.name, "kind": task.unit, "optimizer": base.optimizer, "batch_norm": profile.batch_norm,
        "metric": "loss" if task.metric is None else "accuracy", "examples": profile.examples, "epochs": base.epochs,
        "batch": base.batch, "one_worker": one, "one_worker_seconds": (time.process_time() - started) / len(seeds),
        "noise": [{"value": each.value, "low": each.low, "high": each.high, "epochs": each.epochs}
                  for each in profile.noise],
        "plans": [],
    }  # fmt: skip
    alone = base.epochs * (profile.examples // base.batch) * STEP_SECONDS
    for workers in WORKERS:
        plan = make_plan(profile, cluster, workers=[workers])
        recipe, row = Recipe.from_toml(plan.recipe), plan.chosen
        run = recipe if unfolded else folded(recipe, profile.batch_norm)
        found = [trained(task, run.change(seed=seed)) for seed in seeds]
        result = {
            "workers": workers, "local_batch": row.local_batch, "global_batch": row.global_batch,
            "final_batch": row.final_batch, "epochs": row.epochs, "updates": row.updates,
            "rehearsed_workers": run.workers,
            "predicted_speedup": alone / (3600 * row.hours), "recipe": recipe.changes_from(base),
            "warnings": list(plan.warnings), "values": found, **verdict(one, found, case["metric"]),
        }  # fmt: skip
        case["plans"].append(result)
        print(f"  {task.name}, {workers} workers: {result}", file=sys.stderr, flush=True)
    return {**case, "seconds": time.process_time() - started}


def verdict(one: Sequence[float], many: Sequence[float], metric: str) -> dict[str, Any]:
    """Return the difference in points, or in % of the loss, its 95 % interval, and whether the result was kept.

    >>> verdict([0.9, 0.9], [0.895, 0.895], "accuracy")["kept"], verdict([1.0, 1.0], [1.03, 1.03], "loss")["kept"]
    (True, False)
    """
    mean = statistics.fmean(one)
    unit = 100.0 if metric == "accuracy" else 100.0 / mean
    difference = unit * (statistics.fmean(many) - mean)
    worse = -difference if metric == "accuracy" else difference
    limit = 100 * (POINTS if metric == "accuracy" else SHARE)
    return {"difference": difference, "interval": unit * margin(one, many), "kept": worse <= limit}


def welch(one: Sequence[float], many: Sequence[float], metric: str) -> str:
    """Return the verdict of the studies: by the whole 90 % interval of the difference.

    >>> welch([0.9, 0.9, 0.91], [0.9, 0.91, 0.9], "accuracy"), welch([1.0, 1.1, 0.9], [1.1, 0.9, 1.0], "loss")
    ('kept', 'undecided')
    """
    first, second = (
        Measured(value=mean, spread=spread, num_seeds=len(values))
        for values in (many, one)
        for mean, spread in [mean_and_spread(values)]
    )
    info, tolerance = (LOSS, SHARE) if metric == "loss" else (ACCURACY, POINTS)
    return compare(first, second, info, tolerance).verdict or "undecided"


def margin(*groups: Sequence[float]) -> float:
    """Return half the width of Welch's 95 % interval of a difference of means; NaN for single values."""
    if min(map(len, groups)) < 2:
        return math.nan
    first, second = (
        Sample(mean=statistics.fmean(one), deviation=statistics.stdev(one), count=len(one), freedom=len(one) - 1)
        for one in groups
    )
    return half_width(first, second, confidence=0.95)


def table(cases: Sequence[dict[str, Any]]) -> str:
    """Return the cases as a table in Markdown; *warned* means of the result, not of the cost."""
    heads = (
        "task", "one worker", "workers", "global batch", "epochs", "updates", "faster", "planned", "difference",
        "by the mean", "Welch",
    )  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for case in cases:
        norm = ", batch norm" if case["batch_norm"] else ""
        new = "*new*, " * (case["task"] in {task.name for task in NEW})
        name = f"{case['task']} ({new}{case['optimizer']}{norm})"
        base = case["epochs"] * (case["examples"] // case["batch"])
        alone = f"{shown(case['one_worker'], case['metric'])}, batch {case['batch']}, {base:,} updates"
        for plan in case["plans"]:
            batch = f"{plan['global_batch']:,}"
            batch += f" to {plan['final_batch']:,}" if plan["final_batch"] != plan["global_batch"] else ""
            unit = "points" if case["metric"] == "accuracy" else "% of the loss"
            judged = "kept" if plan["kept"] else "**lost**"
            warned = ", warned" if any("result" in text for text in plan["warnings"]) else ""
            lines.append(
                f"| {name} | {alone} | {plan['workers']} | {batch} | {case['epochs']} -> {plan['epochs']} | "
                f"{plan['updates']:,} | {plan['predicted_speedup']:.1f} x | {shown(plan['values'], case['metric'])} | "
                f"{plan['difference']:+.1f} ± {plan['interval']:.1f} {unit} | {judged}{warned} | "
                f"{welch(case['one_worker'], plan['values'], case['metric'])} |"
            )
            name = alone = ""
    return "\n".join(lines)


def shown(values: Sequence[float], metric: str) -> str:
    """Write the mean of some seeds."""
    mean = statistics.fmean(values)
    return f"{100 * mean:.1f} %" if metric == "accuracy" else f"{mean:.4f}"


def main() -> None:
    """Run the panel, task by task, and save after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="part of a task's name; the other cases of this commit are kept")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--unfolded", action="store_true", help="rehearse all workers one by one, which takes hours")
    parser.add_argument("--table", action="store_true", help="print the table of the saved result")
    parser.add_argument("--development", action="store_true", help="the development tasks instead of the panel's")
    parser.add_argument("--no-noise", action="store_true", help="plan as if the noise scale were not known")
    options = parser.parse_args()
    tasks = DEVELOPMENT if options.development else PANEL
    name = "plans_development" if options.development else "plans"
    name += "_unfolded" * options.unfolded + "_no_noise" * options.no_noise
    if options.table:
        cases = json.loads((RESULTS / f"{name}.json").read_text())["cases"]
        print(table(cases), json.dumps(summary(cases)), sep="\n\n")
        return
    torch.set_num_threads(1)
    rueda.init()
    seeds = range(options.seeds)
    cases = {case["task"]: case for case in earlier(name).get("cases", [])}
    for task in [task for task in tasks if options.only in task.name]:
        cases[task.name] = case_of(task, seeds, unfolded=options.unfolded, no_noise=options.no_noise)
        found = [cases[task.name] for task in tasks if task.name in cases]
        save(name, {"cases": found, **summary(found), "wanted": {"8": 0.9, "64": 0.8}}, seeds=seeds)
    print(table([cases[task.name] for task in tasks if task.name in cases]))


def summary(cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return how many plans were kept, of all tasks and of the new ones, and their geometric mean speed-up.

    ``welch`` counts the verdicts by the whole interval.
    """
    new = {task.name for task in NEW}
    found: dict[str, Any] = {"kept": {}, "kept_of_new_tasks": {}, "welch": {}, "faster": {}}
    for workers in WORKERS:
        own = [(case, plan) for case in cases for plan in case["plans"] if plan["workers"] == workers]
        plans = [(case["task"], plan) for case, plan in own]
        judged = [welch(case["one_worker"], plan["values"], case["metric"]) for case, plan in own]
        found["welch"][str(workers)] = {name: judged.count(name) for name in ("kept", "undecided", "lost")}
        fresh = [plan["kept"] for name, plan in plans if name in new]
        found["kept"][str(workers)] = f"{sum(plan['kept'] for _, plan in plans)} of {len(plans)}"
        found["kept_of_new_tasks"][str(workers)] = f"{sum(fresh)} of {len(fresh)}"
        found["faster"][str(workers)] = statistics.geometric_mean(plan["predicted_speedup"] for _, plan in plans)
    return found


if __name__ == "__main__":
    main()
