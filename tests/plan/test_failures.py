"""Failures in a plan: published rates, what is assumed, the chosen interval and spares, the recipe and the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plan.profiles import RECIPE, profile, step
from rueda.errors import ProfileError
from rueda.plan import Cluster, Link, load_cluster, make_plan
from rueda.plan.checkpoint_interval import daly_interval, young_interval
from rueda.plan.cluster_files import read_cluster
from rueda.plan.failures import PUBLISHED, FailureModel, failure_model
from rueda.records.failure_plan import FailurePlan
from rueda.records.plan import Plan
from rueda.records.recipe.recipe import Recipe
from rueda.report.collect import collect
from rueda.report.page import render

LINK = Link(latency=0, bandwidth=1e15)
NODES = Cluster(name="nodes", devices_per_node=8, jitter=0.0, speed=1.0, inside=LINK, between=LINK)
KNOWN: dict[str, Any] = {
    "mtbf_hours": 3692, "hardware": 0.78, "checkpoint_seconds": 60, "detect_seconds": 60, "recover_seconds": 300,
    "repair_hours": 24,
}  # fmt: skip


def plan(
    *, nodes: int = 128, hours: float | None = 24.0, recipe: Recipe = RECIPE, cluster: Cluster = NODES, **failures: Any
) -> Plan:
    measured = profile([step(1, 0.01), step(64, 0.01)], recipe=recipe.to_toml())
    own = FailureModel(**failures) if failures else cluster.failures
    return make_plan(measured, replace(cluster, failures=own), workers=[8 * nodes], hours=hours)


def failures_of(found: Plan) -> FailurePlan:
    assert found.failures is not None
    return found.failures


def test_published_rates() -> None:
    """Per 1,000 node-days, and as the mean time between interruptions of 1,024 GPUs."""
    found = {one.name: (round(one.per_thousand_node_days, 2), round(one.job_hours(128), 1)) for one in PUBLISHED}
    assert found == {
        "RSC-1": (6.5, 28.8), "RSC-2": (2.34, 80.1), "Llama 3": (3.79, 49.5), "OPT-175B": (14.11, 13.3),
        "RSC-1, jobs of 1,024 GPUs": (23.73, 7.9),
    }  # fmt: skip
    assert PUBLISHED[0].job_hours(2048) == pytest.approx(1.8, abs=0.01)  # as its authors project for 16,384 GPUs
    shipped = {"dgx-a100": PUBLISHED[0], "dgx-h100": PUBLISHED[2]}
    for name, rate in shipped.items():
        cluster = load_cluster(name)
        assert failure_model(cluster).mtbf_hours == pytest.approx(rate.mtbf_hours, rel=1e-3)
        assert any(text.startswith("failures: ") for text in cluster.sources)
    assert failure_model(load_cluster("ethernet-25")).mtbf_hours == pytest.approx(
        8 * PUBLISHED[0].mtbf_hours / load_cluster("ethernet-25").devices_per_node
    )


def test_a_day_of_1024_workers() -> None:
    found = plan(**KNOWN)
    failures, mtbf = failures_of(found), 3692 * 3600 / 128
    assert failures.job.job_mtbf_seconds == pytest.approx(mtbf) and failures.expected == pytest.approx(0.832, abs=1e-3)
    assert failures.young_seconds == pytest.approx(young_interval(60, mtbf))
    assert failures.daly_seconds == pytest.approx(daly_interval(60, mtbf))
    assert failures.interval_seconds == 58 * 60 == failures.chosen.interval_seconds
    assert failures.chosen.goodput > failures.best.goodput - 0.005 > 0.9
    low, high = failures.flat
    assert low < 40 * 60 and high > 75 * 60
    assert failures.chosen.spares == failures.spares == 2
    recipe = Recipe.from_toml(found.recipe)
    assert recipe.checkpoint_minutes == 58
    assert "checkpoint_minutes = 58.0 # Daly 2006, for 1 min a checkpoint and a failure every 29 h" in found.recipe
    said = " ".join(found.advice)
    assert "an interruption every 29 h, 0.83 in 24 h" in said and "Save every 58 min" in said
    assert "2 spare nodes (16 workers)" in said and "saving" in said and "lost work" in said
    assert not any("Failures" in text for text in found.unknown)
    assert Plan.from_json(found.to_json()).failures == failures


def test_the_spares_that_pay() -> None:
    """Each costs 1 of 128 nodes: waiting, two pay; with an elastic training none does, if repairs are not too slow."""
    waiting, elastic = failures_of(plan(**KNOWN)), failures_of(plan(**KNOWN, elastic=True))
    for found in (waiting, elastic):
        own = [row for row in found.by_spares if row.elastic == found.elastic]
        worth = {row.spares: row.goodput / (128 + row.spares) for row in own}
        assert worth[found.spares] == max(worth.values())
    assert (waiting.spares, elastic.spares) == (2, 0)
    assert failures_of(plan(**KNOWN, spares=7)).chosen.spares == 7
    one_node = failures_of(plan(nodes=1, cluster=replace(NODES, max_nodes=1, between=None), **KNOWN))
    assert one_node.spares == 0 and {row.spares for row in one_node.by_spares} == {0}


@pytest.mark.parametrize(
    ("recipe", "hours", "minutes", "text"),
    [
        (RECIPE, 24.0, 58, "Save every 58 min (Daly"),
        (RECIPE.change(epochs=48), 24.0, None, "an epoch of 30 min ends with one anyway"),
        (RECIPE.change(checkpoint_minutes=5.0), 24.0, 5, "the recipe keeps its own"),
        (RECIPE.change(checkpoint_every=100), 24.0, None, "the recipe keeps its own"),
    ],
)
def test_the_recipe_saves_as_often_as_it_pays(recipe: Recipe, hours: float, minutes: float | None, text: str) -> None:
    found = plan(recipe=recipe, hours=hours, **KNOWN)
    assert Recipe.from_toml(found.recipe).checkpoint_minutes == minutes
    assert text in " ".join(found.advice)


def test_negligible_failures_are_not_mentioned() -> None:
    """A few seconds on a few nodes, and any time on the profiled machine, which is no cluster; unless asked for."""
    quiet = plan(hours=None, cluster=load_cluster("dgx-h100"))
    assert quiet.failures is None and "ailure" not in " ".join([*quiet.advice, *quiet.unknown])
    assert Recipe.from_toml(quiet.recipe).checkpoint_minutes is None
    slow = profile([step(64, 1000.0)])
    assert make_plan(slow, load_cluster("this-machine", slow), workers=[1]).failures is None
    assert make_plan(slow, load_cluster("this-machine", slow), workers=[1], hours=24).failures is not None
    always = make_plan(slow, load_cluster("this-machine", slow), workers=[1], always_failures=True)
    assert always.failures is not None and always.failures.hours == pytest.approx(always.chosen.hours)
    cluster = replace(NODES, failures=FailureModel(mtbf_hours=1000))
    assert make_plan(slow, cluster, workers=[8]).failures is not None  # 160 hours, of its own


def test_what_is_assumed_is_said() -> None:
    found = plan()
    (text,) = (text for text in found.unknown if "Failures" in text)
    for part in ("a node fails every 3,692 h, as on RSC-1", "a checkpoint takes 1 s", "after 60 s", "5 min", "24 h"):
        assert part in text.replace("1 min", "60 s")
    large = make_plan(profile([step(64, 0.01)], parameters=10**10), NODES, workers=[64], hours=24)
    assert failures_of(large).job.stall_seconds == 120  # 12 bytes a parameter at 1 GB/s


def test_asynchronous_checkpoints_stall_less() -> None:
    """The formula takes the stall; an interval cannot be shorter than the writing."""
    both = {"spares": 4, **KNOWN}
    synchronous, asynchronous = (
        failures_of(plan(**{**both, **more})) for more in ({}, {"checkpoint_seconds": 2, "write_seconds": 60})
    )
    assert asynchronous.interval_seconds == 11 * 60 < synchronous.interval_seconds
    assert asynchronous.chosen.goodput > synchronous.chosen.goodput + 0.02
    slow = failures_of(plan(**{**both, "checkpoint_seconds": 1, "write_seconds": 3600}))
    assert slow.interval_seconds == 3599 and slow.reason == "as often as a checkpoint can be written"


def test_a_simulated_interval_that_is_better_than_the_formulas() -> None:
    """A short training with long checkpoints: the last one is not needed, so thirds are better than quarters."""
    found = failures_of(plan(nodes=8, hours=6, mtbf_hours=40, checkpoint_seconds=1200, spares=4))
    assert found.reason == "simulated: 1.0 points of goodput more than at Daly's 1.6 h"
    assert found.interval_seconds == found.best.interval_seconds == 7200 != found.daly_seconds


def test_failures_that_leave_nothing() -> None:
    """One every 4.5 s: a part of the day is simulated, and a warning says that it is hopeless."""
    found = plan(nodes=8, mtbf_hours=0.01)
    assert failures_of(found).chosen.goodput < 0.01 and failures_of(found).simulated_hours == pytest.approx(0.25)
    assert any(text.startswith("failures leave 0.") for text in found.warnings)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mtbf_hours": 0.0}, "failures: mtbf_hours: expected more than 0 and finite, got 0.0; correct it"),
        ({"mtbf_hours": float("nan")}, "failures: mtbf_hours: expected more than 0 and finite, got nan"),
        ({"checkpoint_seconds": 0}, "failures: checkpoint_seconds: expected more than 0"),
        ({"write_seconds": float("inf")}, "failures: write_seconds: expected more than 0 and finite, got inf"),
        ({"recover_seconds": -1}, "failures: recover_seconds: expected 0 or more and finite, got -1"),
        ({"hardware": 1.5}, "failures: hardware: expected a fraction, from 0 to 1, got 1.5"),
        ({"spares": -1}, "failures: spares: expected 0 or more and finite, got -1"),
    ],
)
def test_wrong_values(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        FailureModel(**values)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("[failures]\nspare = 3", r"c.toml: \[failures\]: expected one of .*, got 'spare'; did you mean spares"),
        ("failures = 3", r"c.toml: failures: expected a table, got 3; write \[failures\]"),
        ("[failures]\nspares = 1.5", r"c.toml.*failures.spares: expected int, got 1.5"),
        ("[failures]\nrepair_hours = -2", r"c.toml: failures: repair_hours: expected 0 or more"),
    ],
)
def test_wrong_tables(table: str, message: str) -> None:
    text = f"devices_per_node = 1\nmax_nodes = 1\n{table}\n"
    with pytest.raises(ProfileError, match=message):
        read_cluster(text, name="c", source="c.toml")


def test_a_table_in_a_cluster_file() -> None:
    text = "devices_per_node = 1\nmax_nodes = 1\n[failures]\nmtbf_hours = 100\nspares = 2\nelastic = true\n"
    found = read_cluster(text, name="c", source="c.toml").failures
    assert found == FailureModel(mtbf_hours=100, spares=2, elastic=True)


@pytest.mark.parametrize("hours", [0.0, -1.0, float("inf"), float("nan")])
def test_hours_that_are_no_length(hours: float) -> None:
    with pytest.raises(ProfileError, match="hours: expected more than 0 and finite"):
        plan(hours=hours)


def test_the_page(tmp_path: Path) -> None:
    found = plan(**KNOWN)
    found.save(tmp_path / "plan.json")
    (section,) = collect([tmp_path])
    checkpoints, spares = section.plots[-2:]
    marks = {trace["name"]: trace for trace in checkpoints.traces}
    assert marks["Young 1974: 59 min"]["x"] == [pytest.approx(failures_of(found).young_seconds / 60)] * 2
    assert marks["Daly 2006: 58 min"]["x"] == [pytest.approx(failures_of(found).daly_seconds / 60)] * 2
    assert marks["chosen"]["x"] == [58] and marks["chosen"]["y"] == [100 * failures_of(found).chosen.goodput]
    curve = marks["simulated"]
    assert curve["x"] == sorted(curve["x"]) and max(curve["y"]) == 100 * failures_of(found).best.goodput
    assert [trace["name"] for trace in spares.traces] == ["waits for a repair", "elastic", "chosen"]
    page = render([section])
    assert "Failures in 24 h on 128 nodes, one every 29 h" in page and "Spare nodes" in page
    quiet = plan(hours=None, cluster=load_cluster("dgx-h100"))
    quiet.save(tmp_path / "plan.json")
    (section,) = collect([tmp_path])
    assert len(section.plots) == 3 and "spare node" not in render([section]).lower()


@pytest.mark.parametrize("name", ["intervals", "by_spares"])
def test_a_plan_without_its_simulations_is_refused(name: str) -> None:
    found = plan(**KNOWN)
    damaged = replace(found, failures=replace(failures_of(found), **{name: ()}))
    with pytest.raises(ProfileError, match=rf"plan.failures.{name}: expected a simulation"):
        Plan.from_json(damaged.to_json())
