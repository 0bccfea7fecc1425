"""What lab 4 computes: through the library, so that a change there changes the lab."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rueda.labs.answering import answer_of
from rueda.labs.lab_4 import learning_curves, measured, planner, steps
from rueda.labs.showing import Text
from rueda.plan import collectives, prediction
from rueda.plan import noise as plan_noise
from rueda.plan import planning as plan_planning
from rueda.records.forecast import Law
from rueda.report.model import Table
from rueda.report.plot import Plot


@pytest.fixture(autouse=True)
def no_memory() -> Iterator[None]:
    """Nothing is remembered from test to test: formulas change in between."""
    caches = (planner.place, planner.plan, learning_curves.forecast, learning_curves.synthetic)
    for one in caches:
        one.cache_clear()
    yield
    for one in caches:
        one.cache_clear()


def texts(drawn: list[Any]) -> str:
    return " ".join(part.text for part in drawn if isinstance(part, Text))


def test_the_fit_finds_the_constants_that_it_was_given() -> None:
    found = learning_curves.synthetic_figure(-0.5, 0.05, 10)
    assert isinstance(found[0], Plot)
    from rueda.plan.data_needed import extrapolate

    law = extrapolate(learning_curves.synthetic(-0.5, 0.05, 10), 0.1).law
    assert law is not None and law.beta.low < -0.5 < (law.beta.high or 0)
    assert law.gamma.low < 0.05 < (law.gamma.high or 1)
    assert law.fitted[0] > learning_curves.SIZES[0]  # the small-data zone was left out


def test_a_target_below_the_floor_is_refused_and_a_reachable_one_answered() -> None:
    assert "No forecast" in texts(learning_curves.forecast_figure("glyphs", 0.06))
    assert "irreducible" in texts(learning_curves.forecast_figure("glyphs", 0.06))
    assert "needs about 28,500" in texts(learning_curves.forecast_figure("Fashion-MNIST", 0.1))


def test_fewer_sizes_leave_a_wider_interval() -> None:
    widths = []
    for sizes in (4, 5, 6):
        check = learning_curves.forecast("Fashion-MNIST", 0.1, sizes).checks[0]
        widths.append((check.predicted.high or 1) - check.predicted.low)
    assert widths[0] > widths[1] > widths[2]
    assert isinstance(learning_curves.check_figure("glyphs", 4)[-1], Table)
    assert learning_curves.needs_table("glyphs").texts[-1][1] == "no forecast"


def test_every_cluster_and_every_plan_is_drawn() -> None:
    for cluster in steps.CLUSTERS:
        assert isinstance(steps.step_figure(cluster, 32)[0], Plot)
        assert "Recommended" in texts(planner.plan_figure(cluster, 1000))
        assert planner.batches_figure(cluster, 1000).traces
    assert len(planner.money_figure(2000)[1].rows) == 2  # type: ignore[union-attr]
    assert "USD" in texts(planner.target_on_cluster(0.09, "dgx-h100", 8))
    assert "# 0.01 of one worker x " in planner.advice("dgx-h100", 2000)[-1].source  # type: ignore[union-attr]
    assert max(one.workers for one in steps.predictions("pcie4-4", 32)) == 4
    assert steps.all_reduce_figure(10.0).traces


def test_a_larger_noise_scale_never_recommends_fewer_workers() -> None:
    counts = [planner.plan("dgx-h100", scale).chosen.workers for scale in (250, 1000, 4000)]
    assert counts == sorted(counts) and counts[0] < counts[-1]


def test_predictions_and_measurements_are_drawn() -> None:
    assert len(measured.published_figure()[1].rows) == 8  # type: ignore[union-attr]
    assert measured.largest_error("wall") == pytest.approx(0.0819, abs=1e-4)
    assert isinstance(measured.benchmark_figure("processor")[0], Plot)


CHANGES: dict[str, tuple[Any, str, Any, Callable[[], Any]]] = {
    "the power law": (Law, "error", lambda self, examples: 0.5,
                      lambda: learning_curves.law_figure(-0.3, 0.0)[0].traces[1]["y"]),  # type: ignore[union-attr]
    "the ring": (collectives, "_fastest", lambda *of: 1.0, lambda: steps.all_reduce_figure(10.0).traces[0]["y"]),
    "what hides an all-reduce": (prediction, "INTERFERENCE", 0.9,
                                 lambda: steps.step_figure("ethernet-25", 32)[1].texts),  # type: ignore[union-attr]
    "goodput": (plan_planning, "statistical_efficiency", lambda *sizes: 0.01,
                lambda: planner.batches_figure("dgx-a100", 2000).traces[0]["y"]),
}  # fmt: skip
"""by name: where a formula of the library is, what it is replaced by, and what the lab shows"""


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_of_a_formula_changes_the_lab(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, other, shown = CHANGES[what]
    before = shown()
    planner.plan.cache_clear()
    monkeypatch.setattr(where, name, other)
    assert shown() != before


def test_a_change_of_a_formula_changes_what_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    goodput, ring = answer_of("4.goodput"), answer_of("4.ring")
    assert goodput.value == pytest.approx(4000) and ring.value == pytest.approx(175)
    monkeypatch.setattr(plan_noise, "statistical_efficiency", lambda *sizes: 0.25)
    monkeypatch.setattr(collectives, "ring", lambda *of: 1.0)
    assert goodput.value == pytest.approx(2000) and ring.value == pytest.approx(1000)
