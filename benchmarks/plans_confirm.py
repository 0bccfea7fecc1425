"""How often does `rueda plan --confirm` foresee whether a plan keeps one worker's result?

Every plan of the saved panel (:mod:`plans`) is confirmed as the command does it, about a quarter of the training with a
seed that the panel has not used, and compared with what the panel found at the end. Plans are made to be kept, so these
say little about plans that will not be. Two others do: the plans of the panel's first use, by former rules, some of
which were lost (``results/plans_first_use.json``); and, on the development tasks, where the design was chosen, plans
that are too bold: 16 times the batch, as if every example counted fully.

    OMP_NUM_THREADS=1 python benchmarks/plans_confirm.py
    OMP_NUM_THREADS=1 python benchmarks/plans_confirm.py --development
    OMP_NUM_THREADS=1 python benchmarks/plans_confirm.py --first-use
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from typing import Any

import torch

import rueda
from _common import COMMITTED, save
from plan_development import DEVELOPMENT
from plans import PANEL, POINTS, SHARE, folded, trained, verdict
from rueda.plan.choice import choose_recipe, with_cooldown
from rueda.records.metric import ACCURACY, LOSS
from rueda.records.plan import PlanNoise
from rueda.study.confirmation import Confirmation, short_pair
from rueda.tasks import Task

SEED = 100
BOLD = 16


def confirmed(task: Task, case: dict[str, Any], plan: dict[str, Any]) -> dict[str, Any]:
    """Confirm one plan and compare with the verdict at the end."""
    whole = folded(task.recipe.with_values(plan["recipe"]), case["batch_norm"])
    first = with_cooldown(task.recipe)
    one, planned = (each.change(seed=SEED) for each in short_pair(first, whole))
    values = [trained(task, one), trained(task, planned)]
    metric, tolerance = (ACCURACY, POINTS) if case["metric"] == "accuracy" else (LOSS, SHARE)
    found = Confirmation(
        epochs=(one.epochs, planned.epochs), metric=metric, one_worker=values[0],
        planned=None if math.isnan(values[1]) else values[1], tolerance=tolerance,
    )  # fmt: skip
    return {
        "task": task.name, "workers": plan["workers"], "bold": plan.get("bold", False), "epochs": found.epochs,
        "values": values, "change": found.change, "holds": found.holds, "difference": plan["difference"],
        "kept": plan["kept"], "right": found.holds == plan["kept"],
    }  # fmt: skip


def bold_plan(task: Task, case: dict[str, Any]) -> dict[str, Any]:
    """Return a plan for 16 times the batch at an infinite noise scale, and what becomes of it (one seed)."""
    endless = PlanNoise(value=1e9, first=1e9, low=None, high=None, step=1, epochs=1.0, source="assumed")
    recipe = choose_recipe(
        task.recipe, workers=BOLD, local_batch=task.recipe.batch, noise=endless, examples=case["examples"],
        batch_norm=case["batch_norm"],
    ).change(sync_batch_norm=bool(case["batch_norm"]))  # fmt: skip
    found = [trained(task, folded(recipe, case["batch_norm"]).change(seed=0))]
    judged = verdict(case["one_worker"], found, case["metric"])
    return {"workers": BOLD, "bold": True, "recipe": recipe.changes_from(task.recipe), **judged}


def confirm_all(tasks: Sequence[Task], cases: Sequence[dict[str, Any]], *, with_bold: bool) -> list[dict[str, Any]]:
    """Confirm every plan of some cases; plans for 8 and 64 workers that are the same training are confirmed once."""
    rows: list[dict[str, Any]] = []
    by_name = {task.name: task for task in tasks}
    for case in cases:
        task, done = by_name[case["task"]], dict[str, dict[str, Any]]()
        for plan in [*case["plans"], *([bold_plan(task, case)] if with_bold else [])]:
            run = folded(task.recipe.with_values(plan["recipe"]), case["batch_norm"]).to_toml()
            row = done.setdefault(run, confirmed(task, case, plan) if run not in done else {})
            holds, kept = row["holds"], plan["kept"]
            rows.append({**row, "workers": plan["workers"], "kept": kept, "right": holds == kept})
            print(rows[-1], file=sys.stderr, flush=True)
    return rows


def counts(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return how often it was right, and how often it held what was kept and doubted what was lost."""
    kept, lost = [row for row in rows if row["kept"]], [row for row in rows if not row["kept"]]
    return {
        "right": f"{sum(row['right'] for row in rows)} of {len(rows)}",
        "kept and held": f"{sum(row['holds'] for row in kept)} of {len(kept)}",
        "lost and doubted": f"{sum(not row['holds'] for row in lost)} of {len(lost)}",
    }


def main() -> None:
    """Confirm the plans of the committed result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--development", action="store_true", help="the development tasks instead of the panel's")
    parser.add_argument("--first-use", action="store_true", help="the plans of the panel's first use, by former rules")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rueda.init()
    name, tasks = ("plans_development", DEVELOPMENT) if options.development else ("plans", PANEL)
    name += "_first_use" * options.first_use
    cases = json.loads((COMMITTED / f"{name}.json").read_text())["cases"]
    rows = confirm_all(tasks, cases, with_bold=options.development)
    found = {"plans": counts([row for row in rows if not row["bold"]])}
    if options.development:
        found["bold plans"] = counts([row for row in rows if row["bold"]])
    print(json.dumps(found, indent=1))
    save(name.replace("plans", "plans_confirm"), {"rows": rows, **found}, seeds=(SEED,))


if __name__ == "__main__":
    main()
