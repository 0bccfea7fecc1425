"""What lab 3 computes: through the library, so that a change there changes the lab."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rueda.labs.answering import answer_of, check_of
from rueda.labs.lab_3 import minima, noise, rates, regimes, small_task, technique_tables, techniques, throughput
from rueda.optim import noise_scale, scaling
from rueda.plan import noise as plan_noise
from rueda.records.batch_curve import BatchCurve
from rueda.records.study import Study
from rueda.report.model import Line, Table
from rueda.report.plot import Plot


def line(name: str, test: float, train: float, updates: int) -> Line:
    """A run that was not trained."""
    progress: dict[str, list[float | None]] = {
        "epochs": [4.0], "updates": [float(updates)], "seconds": [1.0],
        "test_accuracy": [test], "train_accuracy": [train],
    }  # fmt: skip
    batch: dict[str, list[float | None]] = {**{name: progress[name] for name in ("epochs", "updates", "seconds")},
                                            "global_batch": [128.0]}  # fmt: skip
    return Line(name=name, task="small-glyphs", recipe=small_task.recipe(name), progress=progress, batch=batch)


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Trainings by name only; the list of their names."""
    asked: list[str] = []

    def train(recipe: Any, name: str) -> Line:
        asked.append(name)
        made = line("naive", 0.5, 0.5, 60 if recipe.workers > 1 else 500)
        return replace(made, name=name, recipe=recipe)

    for module in (small_task, techniques, rates, noise):
        monkeypatch.setattr(module, "train", train)
    return asked


def test_a_training_of_the_small_task_is_a_line_and_is_made_once() -> None:
    recipe = small_task.recipe("naive").change(epochs=1)
    first = small_task.train(recipe, "naive")
    assert first is small_task.train(recipe, "naive")
    assert first.rehearsed and first.progress["updates"] == [15.0] and 0 < (first.progress["test_accuracy"][0] or 0) < 1


def test_rows_of_one_seed_are_compared_with_one_worker_and_not_decided() -> None:
    section = small_task.compare(
        [line("one-worker", 0.9, 0.9, 500), line("naive", 0.5, 0.5, 60), line("lamb", 0.895, 0.9, 60)]
    )
    assert [(one.role, one.verdict) for one in section.entries] == [
        ("base", None),
        ("naive", "undecided"),
        ("other", "undecided"),
    ]
    assert [row[2] for row in techniques.result_table(section).texts] == ["–", "−40.0, one seed", "−0.5, one seed"]


@pytest.mark.parametrize("technique", [*techniques.UPDATES, *techniques.LAYERWISE])
@pytest.mark.parametrize("batch_norm", ["off", "on"])
def test_a_technique_is_trained_with_its_control(technique: str, batch_norm: str, untrained: list[str]) -> None:
    drawn = techniques.on_and_off(technique, batch_norm)
    on = f"batch-norm+{technique}" if batch_norm == "on" else technique
    assert untrained[0] == "one-worker" and untrained[-1] == on
    assert untrained[-2] == ("batch-norm" if batch_norm == "on" else "naive")
    has_control = batch_norm == "on" or technique in (*techniques.LAYERWISE, "batch-growth")
    assert len(untrained) == (4 if has_control else 3)
    assert isinstance(drawn[0], Plot) and isinstance(drawn[-1], Table)


def test_normalisations_change_nothing_but_the_network(untrained: list[str]) -> None:
    for norm in techniques.NORMS:
        for rate in ("unchanged", "x 8 after a warm-up"):
            techniques.normalisation(norm, rate)
    assert "ghost batches of 4, rate unchanged" in untrained and "none, rate unchanged" not in untrained


def test_the_smallest_number_of_updates_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regimes, "updates_at", lambda batch, rate: None if rate > 0.1 else 100 / rate / batch)
    plot, table = regimes.tuning_figure(128)
    assert isinstance(plot, Plot) and isinstance(table, Table)
    assert len(plot.traces[0]["x"]) == len(regimes.RATES) - 1
    assert [row[0] for row in table.texts if row[2] == "fewest"] == ["0.08"]
    assert table.texts[-1][1] == "not reached"


def test_a_refit_with_all_points_is_the_stored_fit() -> None:
    from rueda.labs import stored
    from rueda.records.steps_to_target import StepsToTarget

    found = stored.load(StepsToTarget, regimes.STORED)
    assert found.fit is not None
    plot = regimes.refitted(5)[0]
    assert isinstance(plot, Plot)
    texts = [one["text"] for one in plot.layout["annotations"]]
    assert f"critical batch {found.fit.critical_batch:.1f}" in texts


def test_stored_tables_are_drawn() -> None:
    for title in technique_tables.TABLES:
        plot = technique_tables.table_figure(title)[1]
        assert isinstance(plot, Plot) and len(plot.traces) >= 3
    assert technique_tables.beside_ours().texts[-1][3:] == ["85.4\N{NO-BREAK SPACE}%", "71.5\N{NO-BREAK SPACE}%"]
    assert technique_tables.effects().texts[1][3] == "+21.2"
    for task in minima.TASKS:
        assert isinstance(minima.curvature_figure(task)[1], Plot)
    assert isinstance(noise.stored_figure(), Plot) and isinstance(throughput.published_figure(), Plot)


CHANGES: dict[str, tuple[Any, str, Any, Callable[[], Any]]] = {
    "the linear rule": (scaling, "RULES", {**scaling.RULES, "linear": lambda scale: 2 * scale},
                        lambda: rates.rules_figure(8).traces[1]["y"]),
    "the schedule": (rates, "build_schedule", lambda recipe, per_epoch: lambda step: 7.0,
                     lambda: rates.schedule_figure(8, "linear", 5)[1].traces[0]["y"]),
    "the critical batch": (BatchCurve, "updates", lambda self, batch: 1 + batch,
                           lambda: [part.texts for part in regimes.curve_figure(512, 64) if isinstance(part, Table)]),
    "the worth of an example": (noise, "statistical_efficiency", lambda batch, base, scale: 0.25,
                                lambda: noise.efficiency_figure(512)[0].traces[0]["y"]),  # type: ignore[union-attr]
    "the noise scale": (noise_scale, "moments", lambda *norms: (2.0, 1.0), lambda: noise.noise_scale([noise.EXAMPLE])),
}  # fmt: skip
"""by name: where a formula of the library is, what it is replaced by, and what the lab shows"""


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_of_a_formula_changes_the_lab(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, other, shown = CHANGES[what]
    before = shown()
    monkeypatch.setattr(where, name, other)
    assert shown() != before


def test_a_change_of_a_formula_changes_what_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's linear rule is both what the question and what the exercise are judged by."""
    rate, warm_up = answer_of("3.rate"), check_of("3.warm-up")
    assert rate.value == pytest.approx(3.2) and warm_up.expected(100, 0.1, 8, 100) == pytest.approx(0.8)
    monkeypatch.setattr(scaling, "RULES", {**scaling.RULES, "linear": lambda scale: scale / 2})
    assert rate.value == pytest.approx(1.6) and warm_up.expected(100, 0.1, 8, 100) == pytest.approx(0.4)
    worth = answer_of("3.worth")
    assert worth.value == pytest.approx(50)
    monkeypatch.setattr(plan_noise, "statistical_efficiency", lambda *sizes: 0.1)
    assert worth.value == pytest.approx(10)


def test_the_row_that_keeps_most_is_computed_from_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    assert answer_of("3.table").value == "batch-norm"
    found = technique_tables.study("CIFAR-10, 8 workers")
    rows = tuple(replace(row, test_accuracy=0.99) if row.name == "lamb" else row for row in found.rows)
    changed: Study = replace(found, rows=rows)
    monkeypatch.setattr(technique_tables, "study", lambda title: changed)
    assert answer_of("3.table").value == "lamb"
