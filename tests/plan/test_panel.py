"""The panel judges the planner as it is: today's rules make its stored plans from the stored noise scales."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from benchmarks_here import BENCHMARKS, names_in_benchmark
from plan.profiles import noise, profile, step
from rueda.plan import load_cluster, make_plan
from rueda.records import Recipe

CASES: list[dict[str, Any]] = json.loads((BENCHMARKS / "results" / "plans.json").read_text())["cases"]


@pytest.fixture(scope="module")
def benchmark() -> dict[str, Any]:
    return names_in_benchmark("plans")


def planned(case: dict[str, Any], base: Recipe, benchmark: dict[str, Any], workers: int) -> tuple[dict[str, Any], int]:
    """Return what the plan changes of one worker's recipe, as JSON has it, and its updates."""
    measured = tuple(
        replace(noise(one["value"], at=index, epochs=one["epochs"]), low=one["low"], high=one["high"])
        for index, one in enumerate(case["noise"])
    )
    bare = profile(
        [step(1, 0.01)], noise=measured, examples=case["examples"], batch_norm=case["batch_norm"], recipe=base.to_toml()
    )
    full = benchmark["on_a_gpu_that_is_not_full"](bare, base.batch)
    plan = make_plan(full, replace(load_cluster("dgx-a100"), speed=1.0), workers=[workers])
    changes = Recipe.from_toml(plan.recipe).changes_from(base)
    return json.loads(json.dumps(changes)), int(plan.chosen.updates)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["task"])
def test_the_rules_still_make_the_plans_that_were_trained(case: dict[str, Any], benchmark: dict[str, Any]) -> None:
    """If this fails the rules have changed: freeze them, run the panel once, and name the commit in docs/plan.md."""
    base = next(task.recipe for task in benchmark["PANEL"] if task.name == case["task"])
    for plan in case["plans"]:
        assert planned(case, base, benchmark, plan["workers"]) == (plan["recipe"], plan["updates"])


def test_the_check_can_fail(benchmark: dict[str, Any]) -> None:
    case, plan = CASES[0], CASES[0]["plans"][0]
    base = next(task.recipe for task in benchmark["PANEL"] if task.name == case["task"])
    quieter = {**case, "noise": [{**one, "value": 10 * one["value"], "low": 10 * one["low"]} for one in case["noise"]]}
    assert planned(quieter, base, benchmark, plan["workers"])[0] != plan["recipe"]


# The table of docs/plan.md of the development tasks without a noise scale.


def of_64_workers(file: str, benchmark: dict[str, Any]) -> dict[str, list[str]]:
    """Return batch, speed-up, difference and Welch's verdict of each task, in the words of the page."""
    found = {}
    for case in json.loads((BENCHMARKS / "results" / file).read_text())["cases"]:
        plan = next(one for one in case["plans"] if one["workers"] == 64)
        first, last = plan["global_batch"], plan["final_batch"]
        unit = " %" if case["metric"] == "loss" else " points"
        found[case["task"]] = [
            str(first) if first == last else f"{first} to {last}",
            f"{plan['predicted_speedup']:.1f} x",
            f"{plan['difference']:+.1f} ± {plan['interval']:.1f}{unit}{'' if plan['kept'] else ', **lost**'}",
            benchmark["welch"](case["one_worker"], plan["values"], case["metric"]),
        ]
    return found


def test_the_table_without_a_noise_scale_is_that_of_the_files(benchmark: dict[str, Any]) -> None:
    before = of_64_workers("plans_development_no_noise_8_times.json", benchmark)
    after = of_64_workers("plans_development_no_noise.json", benchmark)
    page = (BENCHMARKS.parent / "docs" / "plan.md").read_text().partition("### Without a noise scale")[2]
    lines = [line for line in page.partition("\n### ")[0].splitlines() if line.startswith("| ")][1:]
    shown = {line.strip("| ").partition(" (")[0]: [cell.strip() for cell in line.split("|")[2:-1]] for line in lines}
    untrained = ["–"] * 4
    assert shown == {task: [*row, *after.get(task, untrained)] for task, row in before.items()}
